/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the fast path's program and the daemon share. The daemon writes, through
 * memory mappings; the program reads, and counts. Times are CLOCK_MONOTONIC in ns. */
#ifndef NODENS_FASTPATH_H
#define NODENS_FASTPATH_H

#include "skb.h"

enum limits {
	FAST_PORTS = 4,
	FAST_WAYS = 8,	 /* cells that share a bucket */
	LEASE_WAYS = 4,	 /* leases that share a bucket */
	LEASE_BUCKETS = 512,
	LEASE_LISTS = 16, /* a client's answers are counted by this many zones */
	FAST_NOTES = 1024, /* queries that were passed lately */
	NOTE_SHIFT = 28, /* ns of a note's time are shifted by this: 268 ms */
	FAST_ZONES = 64, /* sets of counters */
	FAST_TYPES = 20, /* counted types of queries, with "other" */
	FAST_JUDGED = 24, /* counted results of the normalize directive, for A and AAAA */
	SMALL_NAME = 56, /* bytes */
	SMALL_DATA = 112,
	LARGE_NAME = 120,
	LARGE_DATA = 816,
	FAST_RECORDS = 48,
	LARGE_CELL = 1 << 30, /* this bit of a cell's number selects the large cells */
};

/* Why a DNS query is not answered by the program. 0: it is answered. */
enum pass_reason {
	FAST_ANSWERED,
	PASS_NO_LEASE,
	PASS_UNUSUAL,
	PASS_NOT_FOUND,
	PASS_EXPIRED,
	PASS_REFRESH,
	PASS_TOO_LARGE,
	PASS_CHANGED,
	PASS_FAILED,
	PASS_LOST, /* writing the reply failed: the query is dropped */
	FAST_PASS_COUNT,
};

struct settings {
	__u32 generation; /* cells of other generations are not used */
	__be16 ports[FAST_PORTS];
};

/* The key of an answer, besides the name. Addresses and port are in network byte
 * order, IPv4 as v4-mapped. */
struct answer_key {
	__u32 addr[4];	   /* of the listener */
	__u32 type_class;  /* the four bytes behind the name */
	__be16 port;	   /* of the listener */
	__u8 flags;	   /* of the cache's key */
	__u8 name_len;
};

/* The first part of a cell. seq is odd while the daemon writes the cell. hits and
 * refreshing are not protected by it. */
struct cell_head {
	__u32 seq;
	__u32 hits;
	__u32 refreshing; /* a query has been passed so that the daemon refreshes */
	__u32 generation;
	__u64 born;	  /* 0: TTLs do not count down */
	__u64 expires;
	__u64 refresh_at;
	__u32 zone;	  /* index of the counters */
	__u16 body_len;	  /* bytes */
	__u16 body_sum;	  /* 16-bit ones' complement sum of the body, in host order */
	__be16 flags;	  /* of the header, without RD */
	__be16 counts[3]; /* ANCOUNT, NSCOUNT, ARCOUNT without OPT */
	__u8 records;
	__u8 type;	  /* index of the counter */
	__u8 denial;
	__u8 rcode;
	__u8 judged;	  /* index of the counter */
	__u8 list;	  /* the zone in the statistics of queries */
	__u16 pad;
	struct answer_key key;
};

/* data is the body, that is what follows the question, then at an even offset the
 * offset of each TTL in the body, two bytes each in host order. */
struct small_cell {
	struct cell_head head;
	__u64 name[SMALL_NAME / 8]; /* wire format, lower case, padded with zeros */
	__u64 data[SMALL_DATA / 8];
};

struct large_cell {
	struct cell_head head;
	__u64 name[LARGE_NAME / 8];
	__u64 data[LARGE_DATA / 8];
};

/* Each way is the tag in the upper half and the number of the cell in the lower
 * half; 0 is empty. */
struct bucket {
	__u64 ways[FAST_WAYS];
};

/* seq is odd while the daemon writes the lease. */
struct lease {
	__u32 seq;
	__u32 ifindex;
	__u32 addr[4]; /* of the client */
	__u64 until;
};

struct lease_bucket {
	struct lease ways[LEASE_WAYS];
};

/* The answers that the client of a lease got since the daemon's last look, by list of
 * the cell; further lists share the last counter. */
struct lease_hits {
	__u32 lists[LEASE_LISTS];
};

/* Counters of one zone on one address, per CPU. Sizes: the buckets of the metric. */
struct zone_stats {
	__u64 types[2][FAST_TYPES]; /* IPv4, IPv6 */
	__u64 rcodes[16];
	__u64 lookups[2]; /* success, denial */
	__u64 judged[FAST_JUDGED];
	__u64 dnssec_ok;
	__u64 query_sizes[8];
	__u64 query_bytes;
	__u64 reply_sizes[8];
	__u64 reply_bytes;
};

#endif
