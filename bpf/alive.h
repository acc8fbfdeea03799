/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef NODENS_ALIVE_H
#define NODENS_ALIVE_H

#include "maps.h"

enum liveness {
	ALIVE,
	GONE,      /* the process ended or withdrew */
	LONG_GONE, /* GONE, and no heartbeat for LONG_GONE_SECONDS */
	LOST,      /* GONE, and no heartbeat for LOST_SECONDS */
	HUNG,      /* the process exists, but its heartbeat is late */
};

/* The loader sets it: ktime_get_coarse_ns needs Linux 5.11. */
const volatile __u8 has_coarse_clock = 1;

static __always_inline __u64 now(void)
{
	return has_coarse_clock ? bpf_ktime_get_coarse_ns() : bpf_ktime_get_ns();
}

/* Returns the daemon's state at time ns. The coarse clock lags behind the clock of
 * heartbeats: a heartbeat may be in the future. */
static __always_inline enum liveness liveness(const struct settings *set, __u64 ns)
{
	__u32 zero = 0;
	__u64 *beat;
	__s64 silent;
	int exists = 0;
	void *sk = bpf_map_lookup_elem(&canary, &zero);

	if (sk) {
		exists = 1;
		bpf_sk_release(sk);
	}
	/* Read after the canary: the daemon writes a heartbeat first. */
	beat = bpf_map_lookup_elem(&heartbeat, &zero);
	if (!beat)
		return GONE; /* cannot happen: an array always has its element */
	silent = ns - *(volatile __u64 *)beat;
	if (exists)
		return silent > (__s64)set->heartbeat_timeout ? HUNG : ALIVE;
	if (silent > LOST_SECONDS * 1000000000LL)
		return LOST;
	return silent > LONG_GONE_SECONDS * 1000000000LL ? LONG_GONE : GONE;
}

#endif
