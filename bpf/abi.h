/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The parts of the kernel's ABI that the programs use, and the macros for maps
 * and sections. No installed header is included, so that the objects are the same
 * on every machine.
 */
#ifndef NODENS_ABI_H
#define NODENS_ABI_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;

#define NULL ((void *)0)

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define bpf_htonl(x) __builtin_bswap32(x)
#define bpf_htons(x) __builtin_bswap16(x)
#else
#define bpf_htonl(x) (x)
#define bpf_htons(x) (x)
#endif

enum {
	IPPROTO_TCP = 6,
	IPPROTO_UDP = 17,
	IPPROTO_MPTCP = 262,
};

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_SOCKMAP = 15,
	BPF_MAP_TYPE_SK_STORAGE = 24,
};

enum {
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_MMAPABLE = 1 << 10,
};

enum {
	BPF_SK_STORAGE_GET_F_CREATE = 1 << 0,
};

enum {
	AF_INET = 2,
	AF_INET6 = 10,
};

enum {
	TCP_ESTABLISHED = 1, /* also a connected UDP socket */
};

/* A socket. Addresses and ports are in network byte order, except src_port. */
struct bpf_sock {
	__u32 bound_dev_if;
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 mark;
	__u32 priority;
	__u32 src_ip4;
	__u32 src_ip6[4];
	__u32 src_port;
	__be16 dst_port;
	__u16 pad;
	__u32 dst_ip4;
	__u32 dst_ip6[4];
	__u32 state;
	__s32 rx_queue_mapping;
};

/* The context of the cgroup/connect, sendmsg, recvmsg and getpeername hooks.
 * Addresses and ports are in network byte order. The port is in the lower 16 bits
 * of a word in host byte order. */
struct bpf_sock_addr {
	__u32 user_family;
	__u32 user_ip4;
	__u32 user_ip6[4];
	__u32 user_port;
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 msg_src_ip4;
	__u32 msg_src_ip6[4];
	struct bpf_sock *sk __attribute__((aligned(8)));
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static __u64 (*const bpf_get_socket_cookie)(void *ctx) = (void *)46;
static long (*const bpf_sk_release)(void *sk) = (void *)86;
static void *(*const bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) = (void *)107;
static __u64 (*const bpf_get_netns_cookie)(void *ctx) = (void *)122;
static __u64 (*const bpf_get_current_ancestor_cgroup_id)(int level) = (void *)123;
static __u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160;

#endif
