//go:build ignore

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * A minimal CNI for tests: it routes packets that leave a pod, and has a socket
 * load balancer.
 */
#include "../abi.h"
#include "../redirect.h"

enum {
	BPF_MAP_TYPE_LRU_HASH = 9,
	TC_ACT_OK = 0,
	TC_ACT_SHOT = 2,
	BPF_FIB_LKUP_RET_SUCCESS = 0,
	BPF_FIB_LKUP_RET_NOT_FWDED = 4,
	BPF_FIB_LKUP_RET_NO_NEIGH = 7,
	BPF_ANY = 0,
};

struct __sk_buff {
	__u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority;
	__u32 ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end;
};

struct bpf_fib_lookup {
	__u8 family, l4_protocol;
	__be16 sport, dport;
	__u16 tot_len;
	__u32 ifindex;
	__u8 tos, pad[3];
	__be32 ipv4_src, pad_src[3];
	__be32 ipv4_dst, pad_dst[3];
	__be16 h_vlan_proto, h_vlan_TCI;
	__u8 smac[6], dmac[6];
};

struct packet {
	__u8 dmac[6], smac[6];
	__be16 type;
	__u8 ihl, tos;
	__be16 tot_len, id, frag;
	__u8 ttl, protocol;
	__u16 check;
	__be32 saddr, daddr;
} __attribute__((packed));

static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*const bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*const bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 off, const void *from, __u32 len, __u64 flags) = (void *)9;
static long (*const bpf_fib_lookup)(void *ctx, struct bpf_fib_lookup *params, int plen, __u32 flags) = (void *)69;
static long (*const bpf_redirect_neigh)(__u32 ifindex, void *params, int plen, __u64 flags) = (void *)152;

enum mode {
	LEGACY,        /* M0: the host stack routes */
	FIB,           /* M1: a FIB lookup routes, or the packet is dropped */
	SKIP_FIB,      /* M2: everything leaves by the uplink */
	FIB_OR_STACK,  /* M3: as M1, but local destinations go to the host stack */
};

const volatile __u32 mode;
const volatile __u32 uplink;
const volatile __be32 host_addrs[2];
const volatile __be32 vip;

/* Dropped packets by the result of the FIB lookup. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 16);
} dropped SEC(".maps");

/* Packets to the VIP on the link of count_vip. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} leaked SEC(".maps");

static __always_inline void add(void *map, __u32 key)
{
	__u64 *n = bpf_map_lookup_elem(map, &key);

	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline struct packet *ipv4(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct packet *p = data;

	if (data + sizeof(*p) > end || p->type != bpf_htons(0x0800))
		return NULL;
	return p;
}

static __always_inline int route(struct __sk_buff *skb, struct packet *p)
{
	struct bpf_fib_lookup fib = {
		.family = AF_INET,
		.l4_protocol = p->protocol,
		.ifindex = skb->ifindex,
		.ipv4_src = p->saddr,
		.ipv4_dst = p->daddr,
	};
	long code = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);

	if (code == BPF_FIB_LKUP_RET_NO_NEIGH)
		return bpf_redirect_neigh(fib.ifindex, NULL, 0, 0);
	if (code == BPF_FIB_LKUP_RET_NOT_FWDED && mode == FIB_OR_STACK)
		return TC_ACT_OK;
	if (code != BPF_FIB_LKUP_RET_SUCCESS) {
		add(&dropped, code);
		return TC_ACT_SHOT;
	}
	if (bpf_skb_store_bytes(skb, 0, fib.dmac, 6, 0) || bpf_skb_store_bytes(skb, 6, fib.smac, 6, 0))
		return TC_ACT_SHOT;
	return bpf_redirect(fib.ifindex, 0);
}

SEC("tc") int from_pod(struct __sk_buff *skb)
{
	struct packet *p = ipv4(skb);

	if (!p || mode == LEGACY || p->daddr == host_addrs[0] || p->daddr == host_addrs[1])
		return TC_ACT_OK;
	if (mode == SKIP_FIB)
		return bpf_redirect_neigh(uplink, NULL, 0, 0);
	return route(skb, p);
}

SEC("tc") int count_vip(struct __sk_buff *skb)
{
	struct packet *p = ipv4(skb);

	if (p && p->daddr == vip)
		add(&leaked, 0);
	return TC_ACT_OK;
}

/* The socket load balancer: one backend per service. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct endpoint);
	__type(value, struct endpoint);
	__uint(max_entries, 16);
} backends SEC(".maps");

struct reverse {
	__u64 cookie;
	struct endpoint backend;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct reverse);
	__type(value, struct endpoint);
	__uint(max_entries, 1024);
} reverses SEC(".maps");

static __always_inline struct endpoint peer(struct bpf_sock_addr *ctx, int v6)
{
	struct endpoint e = { .port = (__be16)ctx->user_port };

	if (v6) {
		e.addr[0] = ctx->user_ip6[0];
		e.addr[1] = ctx->user_ip6[1];
		e.addr[2] = ctx->user_ip6[2];
		e.addr[3] = ctx->user_ip6[3];
	} else {
		e.addr[2] = bpf_htonl(0xffff);
		e.addr[3] = ctx->user_ip4;
	}
	return e;
}

static __always_inline void set_peer(struct bpf_sock_addr *ctx, int v6, const struct endpoint *e)
{
	if (v6) {
		ctx->user_ip6[0] = e->addr[0];
		ctx->user_ip6[1] = e->addr[1];
		ctx->user_ip6[2] = e->addr[2];
		ctx->user_ip6[3] = e->addr[3];
	} else {
		ctx->user_ip4 = e->addr[3];
	}
	ctx->user_port = e->port;
}

static __always_inline int balance(struct bpf_sock_addr *ctx, int v6)
{
	struct endpoint service = peer(ctx, v6), *backend = bpf_map_lookup_elem(&backends, &service);
	struct reverse key = {};

	if (!backend)
		return 1;
	key.cookie = bpf_get_socket_cookie(ctx);
	key.backend = *backend;
	bpf_map_update_elem(&reverses, &key, &service, BPF_ANY);
	set_peer(ctx, v6, backend);
	return 1;
}

static __always_inline int unbalance(struct bpf_sock_addr *ctx, int v6)
{
	struct reverse key = {};
	struct endpoint *service;

	key.cookie = bpf_get_socket_cookie(ctx);
	key.backend = peer(ctx, v6);
	service = bpf_map_lookup_elem(&reverses, &key);
	if (service)
		set_peer(ctx, v6, service);
	return 1;
}

SEC("cgroup/connect4") int lb_connect4(struct bpf_sock_addr *ctx) { return balance(ctx, 0); }
SEC("cgroup/connect6") int lb_connect6(struct bpf_sock_addr *ctx) { return balance(ctx, 1); }
SEC("cgroup/sendmsg4") int lb_sendmsg4(struct bpf_sock_addr *ctx) { return balance(ctx, 0); }
SEC("cgroup/sendmsg6") int lb_sendmsg6(struct bpf_sock_addr *ctx) { return balance(ctx, 1); }
SEC("cgroup/recvmsg4") int lb_recvmsg4(struct bpf_sock_addr *ctx) { return unbalance(ctx, 0); }
SEC("cgroup/recvmsg6") int lb_recvmsg6(struct bpf_sock_addr *ctx) { return unbalance(ctx, 1); }
SEC("cgroup/getpeername4") int lb_getpeername4(struct bpf_sock_addr *ctx) { return unbalance(ctx, 0); }
SEC("cgroup/getpeername6") int lb_getpeername6(struct bpf_sock_addr *ctx) { return unbalance(ctx, 1); }

char __license[] SEC("license") = "Dual BSD/GPL";
