/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef NODENS_FLOWS_H
#define NODENS_FLOWS_H

#include "maps.h"

static __always_inline int same(const struct endpoint *a, const struct endpoint *b)
{
	return a->addr[3] == b->addr[3] && a->port == b->port && a->addr[0] == b->addr[0] &&
	       a->addr[1] == b->addr[1] && a->addr[2] == b->addr[2];
}

/* Stores a flow. Returns 0, or -1 if the kernel has no memory for it. */
static __always_inline int remember(void *sk, const struct endpoint *target, const struct endpoint *original)
{
	struct socket_flows *list = bpf_sk_storage_get(&flows, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	__u32 slot;

	if (!list)
		return -1;
	slot = list->next;
#pragma unroll
	for (__u32 i = 0; i < MAX_FLOWS; i++) {
		if (!same(&list->flow[i].target, target))
			continue;
		list->flow[i].original = *original;
		return 0;
	}
	if (slot >= MAX_FLOWS)
		slot = 0;
	list->flow[slot].target = *target;
	list->flow[slot].original = *original;
	list->next = slot + 1;
	return 0;
}

/* Removes the flow to peer: the application connects to peer itself. */
static __always_inline void forget(void *sk, const struct endpoint *peer)
{
	struct socket_flows *list = bpf_sk_storage_get(&flows, sk, NULL, 0);

	if (!list)
		return;
#pragma unroll
	for (__u32 i = 0; i < MAX_FLOWS; i++)
		if (same(&list->flow[i].target, peer))
			list->flow[i].target.port = 0; /* no peer has port 0 */
}

/* Replaces a target or fallback by the application's original destination. */
static __always_inline enum exit_reason restore(void *sk, struct endpoint *peer)
{
	struct socket_flows *list = bpf_sk_storage_get(&flows, sk, NULL, 0);

	if (!list)
		return EXIT_NO_FLOWS;
#pragma unroll
	for (__u32 i = 0; i < MAX_FLOWS; i++) {
		if (!same(&list->flow[i].target, peer))
			continue;
		*peer = list->flow[i].original;
		return EXIT_RESTORED;
	}
	return EXIT_OTHER_PEER;
}

/* Replaces the peer of a multipath TCP socket. */
static __always_inline enum exit_reason restore_multipath(struct endpoint *peer)
{
	struct endpoint *vip = bpf_map_lookup_elem(&origins, peer);

	if (!vip)
		return EXIT_NO_FLOWS;
	*peer = *vip;
	return EXIT_RESTORED;
}

#endif
