/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef NODENS_STEER_H
#define NODENS_STEER_H

#include "alive.h"
#include "flows.h"

static __always_inline int is_service_port(const struct settings *set, __be16 port)
{
#pragma unroll
	for (int i = 0; i < MAX_PORTS; i++)
		if (set->ports[i] == port)
			return port != 0;
	return 0;
}

/* Returns whether the cgroup of the running task or one above it, such as its
 * pod's, has opted out. */
static __always_inline int is_opted_out(const struct settings *set)
{
	__u64 id;

	if (!set->opted_out)
		return 0;
#pragma unroll
	for (int i = 1; i <= MAX_LEVELS; i++) {
		id = bpf_get_current_ancestor_cgroup_id(i);
		if (!id)
			return 0;
		if (bpf_map_lookup_elem(&opted_out, &id))
			return 1;
	}
	return 0;
}

static __always_inline int is_exempt(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);

	return bpf_map_lookup_elem(&exempt, &cookie) != NULL;
}

/* Chooses a fallback. A socket keeps it for about two seconds, so that a retry by
 * musl (2.5 s) or glibc (5 s) reaches another one. Returns NULL if none is known. */
static __always_inline struct endpoint *fallback(struct bpf_sock_addr *ctx, struct service *svc, __u64 ns)
{
	__u32 i, n = svc->fallbacks;

	if (!n)
		return NULL;
	i = (__u32)(bpf_get_socket_cookie(ctx) + (ns >> 31)) % n;
	if (i >= MAX_FALLBACKS)
		return NULL;
	return &svc->fallback[i];
}

/* Returns whether the socket is connected to dst. Every send on a connected IPv6
 * socket with a v4-mapped peer runs sendmsg4 with that peer, and the socket receives
 * from no other. The fields are volatile and read first, because the verifier
 * requires each to be read at its own offset. */
static __always_inline int is_peer(const volatile struct bpf_sock *sk, const struct endpoint *dst)
{
	struct endpoint peer = {
		.addr = { sk->dst_ip6[0], sk->dst_ip6[1], sk->dst_ip6[2], sk->dst_ip6[3] },
		.port = sk->dst_port,
	};
	__be32 ip4 = sk->dst_ip4;

	if (sk->state != TCP_ESTABLISHED)
		return 0;
	if (sk->family == AF_INET)
		return ip4 == dst->addr[3] && peer.port == dst->port;
	return same(&peer, dst);
}

/* Replaces dst by to and stores the flow. */
static __always_inline enum exit_reason put(struct bpf_sock_addr *ctx, struct endpoint *dst,
					    const struct endpoint *to, enum exit_reason why)
{
	if (remember(ctx->sk, to, dst))
		return EXIT_NO_STORAGE;
	*dst = *to;
	return why;
}

/* Decides for a daemon that is not alive. */
static __always_inline enum exit_reason fall_back(struct bpf_sock_addr *ctx, struct endpoint *dst,
						  struct service *svc, enum liveness state, __u64 ns)
{
	struct endpoint *to;

	if (svc->flags & SERVICE_PASS_THROUGH)
		return state == HUNG ? EXIT_PASSED_HUNG : EXIT_PASSED_GONE;
	if (svc->flags & SERVICE_PROXIED && (state == LONG_GONE || state == LOST))
		return EXIT_PASSED_GONE;
	if (state == LOST && svc->last_resort.port)
		return put(ctx, dst, &svc->last_resort, EXIT_FALLBACK_GONE);
	to = fallback(ctx, svc, ns);
	if (!to)
		return EXIT_NO_FALLBACK;
	return put(ctx, dst, to, state == HUNG ? EXIT_FALLBACK_HUNG : EXIT_FALLBACK_GONE);
}

/* Decides about a connect or send to dst, and changes dst in the caller's stack. */
static __always_inline enum exit_reason steer(struct bpf_sock_addr *ctx, struct endpoint *dst, int connects)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&config, &zero);
	struct service *svc;
	enum liveness state;
	__u64 ns;

	if (!set)
		return EXIT_NOT_CONFIGURED;
	if (!is_service_port(set, dst->port))
		return EXIT_OTHER_PORT;
	if (ctx->protocol != IPPROTO_UDP && ctx->protocol != IPPROTO_TCP)
		return EXIT_OTHER_PROTOCOL;
	svc = bpf_map_lookup_elem(&services, dst);
	if (!svc) {
		if (connects) /* a send may be to the connected peer: see is_peer */
			forget(ctx->sk, dst);
		return EXIT_OTHER_ADDRESS;
	}
	if (!connects && is_peer(ctx->sk, dst))
		return EXIT_CONNECTED;
	if (is_opted_out(set))
		return EXIT_OPTED_OUT;
	ns = now();
	state = liveness(set, ns);
	if (state != ALIVE)
		return fall_back(ctx, dst, svc, state, ns);
	if (is_exempt(ctx))
		return EXIT_EXEMPT;
	return put(ctx, dst, &svc->target, EXIT_REDIRECTED);
}

#endif
