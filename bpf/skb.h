/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The parts of the kernel's ABI that a program on packets uses, besides abi.h. */
#ifndef NODENS_SKB_H
#define NODENS_SKB_H

#include "abi.h"

enum {
	TCX_NEXT = -1, /* the next program of the chain runs */
	TC_ACT_SHOT = 2,
	PACKET_HOST = 0,
	ETH_P_IP = 0x0800,
	ETH_P_IPV6 = 0x86dd,
};

enum {
	BPF_F_PSEUDO_HDR = 1 << 4,
	BPF_F_MARK_MANGLED_0 = 1 << 5,
};

/* The context of a tcx program, up to the last field that is used. protocol is in
 * network byte order. */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
};

static long (*const bpf_skb_store_bytes)(void *ctx, __u32 off, const void *from, __u32 len, __u64 flags) = (void *)9;
static long (*const bpf_l4_csum_replace)(void *ctx, __u32 off, __u64 from, __u64 to, __u64 flags) = (void *)11;
static long (*const bpf_skb_load_bytes)(const void *ctx, __u32 off, void *to, __u32 len) = (void *)26;
static long (*const bpf_skb_change_type)(void *ctx, __u32 type) = (void *)32;
static long (*const bpf_skb_change_tail)(void *ctx, __u32 len, __u64 flags) = (void *)38;
static long (*const bpf_redirect_peer)(__u32 ifindex, __u64 flags) = (void *)155;

#endif
