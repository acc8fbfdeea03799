//go:build ignore

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * Socket redirection: a connect or send to a service's VIP goes to the daemon while
 * the daemon is alive, and to a fallback while it is not. Replies appear to come
 * from the VIP.
 *
 * Both families share one translation: IPv4 addresses are v4-mapped. For a v4-mapped
 * destination, an IPv6 socket runs connect6 but sendmsg4, and recvmsg6 for replies.
 * All of them use the same state.
 */
#include "maps.h"
#include "steer.h"

static __always_inline void count(enum hook hook, enum exit_reason why)
{
	__u32 key = hook * EXIT_COUNT + why;
	__u64 *n = bpf_map_lookup_elem(&exits, &key);

	if (n)
		*n += 1;
}

static __always_inline struct endpoint read4(struct bpf_sock_addr *ctx)
{
	struct endpoint e = {
		.addr = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 },
		.port = (__be16)ctx->user_port,
	};
	return e;
}

static __always_inline void write4(struct bpf_sock_addr *ctx, const struct endpoint *e)
{
	ctx->user_ip4 = e->addr[3];
	ctx->user_port = e->port;
}

static __always_inline struct endpoint read6(struct bpf_sock_addr *ctx)
{
	struct endpoint e = {
		.addr = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] },
		.port = (__be16)ctx->user_port,
	};
	return e;
}

static __always_inline void write6(struct bpf_sock_addr *ctx, const struct endpoint *e)
{
	ctx->user_ip6[0] = e->addr[0];
	ctx->user_ip6[1] = e->addr[1];
	ctx->user_ip6[2] = e->addr[2];
	ctx->user_ip6[3] = e->addr[3];
	ctx->user_port = e->port;
}

static __always_inline int is_steered(enum exit_reason why)
{
	return why == EXIT_REDIRECTED || why == EXIT_FALLBACK_GONE || why == EXIT_FALLBACK_HUNG;
}

/* All programs return 1: the system call continues. */
#define FORWARD(section, name, family, hook, connects)			\
	SEC(section) int name(struct bpf_sock_addr *ctx)		\
	{								\
		struct endpoint dst = read##family(ctx);		\
		enum exit_reason why = steer(ctx, &dst, connects);	\
									\
		if (is_steered(why))					\
			write##family(ctx, &dst);			\
		count(hook, why);					\
		return 1;						\
	}

#define REVERSE(section, name, family, hook)				\
	SEC(section) int name(struct bpf_sock_addr *ctx)		\
	{								\
		struct endpoint peer = read##family(ctx);		\
		enum exit_reason why = restore(ctx->sk, &peer);	\
									\
		if (why == EXIT_NO_FLOWS && ctx->protocol == IPPROTO_MPTCP) \
			why = restore_multipath(&peer);			\
		if (why == EXIT_RESTORED)				\
			write##family(ctx, &peer);			\
		count(hook, why);					\
		return 1;						\
	}

FORWARD("cgroup/connect4", connect4, 4, HOOK_CONNECT4, 1)
FORWARD("cgroup/connect6", connect6, 6, HOOK_CONNECT6, 1)
FORWARD("cgroup/sendmsg4", sendmsg4, 4, HOOK_SENDMSG4, 0)
FORWARD("cgroup/sendmsg6", sendmsg6, 6, HOOK_SENDMSG6, 0)
REVERSE("cgroup/recvmsg4", recvmsg4, 4, HOOK_RECVMSG4)
REVERSE("cgroup/recvmsg6", recvmsg6, 6, HOOK_RECVMSG6)
REVERSE("cgroup/getpeername4", getpeername4, 4, HOOK_GETPEERNAME4)
REVERSE("cgroup/getpeername6", getpeername6, 6, HOOK_GETPEERNAME6)

/* Adds the enumerations to BTF, from which the Go types are generated. */
const volatile struct {
	enum hook hook;
	enum exit_reason exit_reason;
	enum limits limits;
	enum service_flags service_flags;
} generated = {};

char __license[] SEC("license") = "Dual BSD/GPL";
