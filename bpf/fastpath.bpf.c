//go:build ignore

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * Answers DNS queries on the host's end of a pod's veth, from copies of the daemon's
 * cache. A packet that is not answered goes on unchanged to the next program: never
 * TC_ACT_OK, which would end the chain and with it the CNI's policy.
 *
 * The steps that are not static are verified once, on their own. This keeps the
 * number of states that the verifier follows small.
 */
#include "fastpath.h"

/* The loader sets them. */
const volatile __u64 hash_seed = 0;
const volatile __u32 bucket_mask = 0;
const volatile __u8 weakly_ordered = 0; /* the CPU may reorder loads */

#define ARRAY(name, type_, entries)			\
	struct {					\
		__uint(type, BPF_MAP_TYPE_ARRAY);	\
		__uint(map_flags, BPF_F_MMAPABLE);	\
		__type(key, __u32);			\
		__type(value, type_);			\
		__uint(max_entries, entries);		\
	} name SEC(".maps")

ARRAY(control, struct settings, 1);
ARRAY(leases, struct lease_bucket, LEASE_BUCKETS);
ARRAY(hits_of_leases, struct lease_hits, LEASE_BUCKETS * LEASE_WAYS);
ARRAY(notes, __u64, FAST_NOTES);
ARRAY(buckets, struct bucket, 1);    /* the loader sets the number */
ARRAY(small_cells, struct small_cell, 1);       /* likewise */
ARRAY(large_cells, struct large_cell, 1);       /* likewise */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct zone_stats);
	__uint(max_entries, FAST_ZONES);
} stats SEC(".maps");

/* Indexed by enum pass_reason. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, FAST_PASS_COUNT);
} passed SEC(".maps");

enum {
	L2_LEN = 14,
	UDP_LEN = 8,
	DNS_LEN = 12,
	OPT_LEN = 11,
	COOKIE_LEN = OPT_LEN + 12, /* an OPT with a client cookie, RFC 7873 */
	MAX_REST = LARGE_NAME + 4 + COOKIE_LEN,
	KEY_DO = 1,
	KEY_CD = 2,
	KEY_AD = 4,
};

/* The state of one run on one CPU. */
struct scratch {
	/* The chosen cell. */
	struct cell_head cell;
	__u64 cell_name[LARGE_NAME / 8];
	__u8 data[1024 + 16];
	/* The query. */
	struct answer_key key;
	__u64 name[LARGE_NAME / 8];
	__u64 rest[24]; /* the packet behind the DNS header, padded with zeros */
	__u8 head[80];	/* the packet up to the question */
	__u32 client[4];
	__u32 ifindex;
	__u32 lease; /* index of its lease's counters */
	__u32 nonce; /* port and ID of the query, network byte order */
	__u64 now;
	/* The OPT record; opt_len 0: there is none. */
	__u32 opt_len;
	__u32 opt_size;
	__u32 opt_sum;
	__u32 opt_do;
	__u32 sampled; /* every eighth query, by ID and port */
	__u32 barrier;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct scratch);
	__uint(max_entries, 1);
} scratches SEC(".maps");

#define barrier() asm volatile("" ::: "memory")
/* Lets the verifier see that x, a __u64, is at most mask. Without it, verifiers before
 * 6.18 lose the bounds of an index into the scratch. */
#define bound(x, mask) asm volatile("%0 &= %1" : "+r"(x) : "i"(mask))
#define get16(p) (*(__u16 *)(p))
#define get32(p) (*(__u32 *)(p))
#define get64(p) (*(__u64 *)(p))

static __always_inline struct scratch *scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratches, &zero);
}

/* Orders the loads before it against those after it. */
static __always_inline void load_barrier(struct scratch *s)
{
	barrier();
	if (weakly_ordered)
		__sync_fetch_and_add(&s->barrier, 0);
	barrier();
}

static __always_inline __u64 mix(__u64 h, __u64 word)
{
	h = (h ^ word) * 0x9e3779b97f4a7c15ULL;
	return h ^ h >> 32;
}

/* The same as lower8 in the server: lowers eight ASCII letters at once. */
static __always_inline __u64 lower8(__u64 x)
{
	const __u64 ones = 0x0101010101010101ULL, tops = 0x8080808080808080ULL;
	__u64 low = x & ~tops;
	__u64 from_a = low + (0x80 - 'A') * ones, beyond_z = low + (0x7f - 'Z') * ones;

	return x | (from_a & ~beyond_z & ~x & tops) >> 2;
}

/* Reports whether the client, on its interface, has a lease, and sets lease. */
__attribute__((noinline)) int leased(__u64 now)
{
	struct scratch *s = scratch();
	struct lease_bucket *b;
	__u64 h = hash_seed;
	int found = 0;
	__u32 bucket, i;

	if (!s)
		return 0;
	h = mix(h, get64(&s->client[0]));
	h = mix(h, get64(&s->client[2]));
	h = mix(h, s->ifindex);
	bucket = h % LEASE_BUCKETS;
	b = bpf_map_lookup_elem(&leases, &bucket);
	if (!b)
		return 0;
#pragma unroll
	for (i = 0; i < LEASE_WAYS; i++) {
		volatile struct lease *l = &b->ways[i];
		__u32 seq = l->seq, differs;
		__u64 until;

		load_barrier(s);
		differs = (l->ifindex ^ s->ifindex) | (l->addr[0] ^ s->client[0]) | (l->addr[1] ^ s->client[1]) |
			  (l->addr[2] ^ s->client[2]) | (l->addr[3] ^ s->client[3]);
		until = l->until;
		load_barrier(s);
		if (!differs && !(seq & 1) && l->seq == seq && until > now)
			found = i + 1;
	}
	s->lease = bucket * LEASE_WAYS + found - 1;
	return found;
}

/* Reads the OPT record, which ends the n bytes of rest. Returns 0 if there is
 * something else. */
__attribute__((noinline)) int parse_opt(__u32 n)
{
	struct scratch *s = scratch();
	__u32 len = OPT_LEN, sum = 0, i;
	__u64 at = n - OPT_LEN;
	__u8 *o;

	if (!s || n < OPT_LEN + 5 || n > MAX_REST)
		return 0;
	bound(at, 255);
	o = (__u8 *)s->rest + at;
	if (o[0] || o[1] || o[2] != 41 || o[9] || o[10]) {
		if (n < COOKIE_LEN + 5)
			return 0;
		len = COOKIE_LEN;
		at = n - COOKIE_LEN;
		bound(at, 255);
		o = (__u8 *)s->rest + at;
		if (o[0] || o[1] || o[2] != 41 || o[9] || o[10] != 12 || o[11] || o[12] != 10 || o[13] || o[14] != 8)
			return 0;
	}
	if (o[6]) /* version */
		return 0;
#pragma unroll
	for (i = 0; i < COOKIE_LEN + 1; i += 2) /* the bytes behind it are zeros */
		sum += get16(o + i);
	s->opt_len = len;
	s->opt_size = (__u32)o[3] << 8 | o[4];
	s->opt_do = o[7] >> 7;
	s->opt_sum = sum;
	return 1;
}

/* Sets name to the n bytes in front of the type in lower case. Returns the hash of
 * the key. */
__attribute__((noinline)) __u64 make_key(__u32 n)
{
	struct scratch *s = scratch();
	__u64 h = hash_seed;
	__u64 *tail, at = n;
	__u32 i;

	if (!s || n > LARGE_NAME)
		return 0;
	bound(at, 127);
	tail = (__u64 *)((__u8 *)s->rest + at); /* type, class and OPT */
	tail[0] = tail[1] = tail[2] = tail[3] = 0;
#pragma unroll
	for (i = 0; i < LARGE_NAME / 8; i++)
		s->name[i] = lower8(s->rest[i]);
	for (i = 0; i < LARGE_NAME / 8 && i * 8 < n; i++)
		h = mix(h, s->name[i]);
	h = mix(h, get64(&s->key.addr[0]));
	h = mix(h, get64(&s->key.addr[2]));
	return mix(h, get64(&s->key.type_class));
}

/* Returns the number of the only cell that may have the key, plus one; 0: none. */
__attribute__((noinline)) __u32 find_cell(__u64 hash)
{
	__u32 bucket = hash & bucket_mask, tag = hash >> 32 | 1, found = 0, i;
	struct bucket *b = bpf_map_lookup_elem(&buckets, &bucket);

	if (!b)
		return 0;
#pragma unroll
	for (i = 0; i < FAST_WAYS; i++) {
		__u64 way = *(volatile __u64 *)&b->ways[i];

		if (way >> 32 == tag)
			found = (__u32)way + 1;
	}
	return found;
}

#define COPY(to, from, words)					\
	_Pragma("unroll") for (i = 0; i < (words); i++)		\
		((__u64 *)(to))[i] = ((__u64 *)(from))[i]

/* Copies a small cell. Returns 0 if the daemon was writing it. */
__attribute__((noinline)) int copy_small(__u32 number)
{
	struct scratch *s = scratch();
	struct small_cell *c = bpf_map_lookup_elem(&small_cells, &number);
	__u32 seq, i;

	if (!s || !c)
		return 0;
	seq = *(volatile __u32 *)&c->head.seq;
	load_barrier(s);
	COPY(&s->cell, &c->head, sizeof(s->cell) / 8);
	COPY(s->cell_name, c->name, SMALL_NAME / 8);
	COPY(s->data, c->data, SMALL_DATA / 8);
	load_barrier(s);
#pragma unroll
	for (i = SMALL_NAME / 8; i < LARGE_NAME / 8; i++)
		s->cell_name[i] = 0;
	return !(seq & 1) && *(volatile __u32 *)&c->head.seq == seq;
}

/* Copies a large cell. Returns 0 if the daemon was writing it. */
__attribute__((noinline)) int copy_large(__u32 number)
{
	struct scratch *s = scratch();
	struct large_cell *c = bpf_map_lookup_elem(&large_cells, &number);
	__u32 seq, i;

	if (!s || !c)
		return 0;
	seq = *(volatile __u32 *)&c->head.seq;
	load_barrier(s);
	COPY(&s->cell, &c->head, sizeof(s->cell) / 8);
	COPY(s->cell_name, c->name, LARGE_NAME / 8);
	COPY(s->data, c->data, LARGE_DATA / 8);
	load_barrier(s);
	return !(seq & 1) && *(volatile __u32 *)&c->head.seq == seq;
}

/* Reports whether the cell has exactly the key. */
static __always_inline int same_key(struct scratch *s)
{
	__u64 differs = 0;
	__u32 i;

#pragma unroll
	for (i = 0; i < sizeof(s->key) / 8; i++)
		differs |= ((__u64 *)&s->key)[i] ^ ((__u64 *)&s->cell.key)[i];
#pragma unroll
	for (i = 0; i < LARGE_NAME / 8; i++)
		differs |= s->name[i] ^ s->cell_name[i];
	return !differs;
}

/* Copies the cell of the key and decides whether its answer may be used. */
__attribute__((noinline)) int take_cell(__u32 number, __u64 now)
{
	struct scratch *s = scratch();
	__u32 index = number & ~LARGE_CELL, zero = 0, generation;
	struct settings *set = bpf_map_lookup_elem(&control, &zero);

	if (!s || !set)
		return PASS_FAILED;
	/* Read before the cell: a reload makes the cells of its predecessor invalid. */
	generation = *(volatile __u32 *)&set->generation;
	if (!(number & LARGE_CELL ? copy_large(index) : copy_small(index)))
		return PASS_CHANGED;
	if (!same_key(s) || s->cell.generation != generation)
		return PASS_NOT_FOUND;
	return now >= s->cell.expires ? PASS_EXPIRED : FAST_ANSWERED;
}

/* The cell itself, not the copy: for hits and refreshing. */
static __always_inline struct cell_head *live_cell(__u32 number)
{
	__u32 index = number & ~LARGE_CELL;

	if (number & LARGE_CELL)
		return bpf_map_lookup_elem(&large_cells, &index);
	return bpf_map_lookup_elem(&small_cells, &index);
}

/* Reports true to one query only: it goes to the daemon, which refreshes the answer. */
__attribute__((noinline)) int claim_refresh(__u32 number)
{
	struct cell_head *live = live_cell(number);

	return live && __sync_val_compare_and_swap(&live->refreshing, 0, 1) == 0;
}

/* Lowers the TTLs by age seconds. Returns what this adds to the sum of the body. */
__attribute__((noinline)) __u32 age_ttls(__u32 age)
{
	struct scratch *s = scratch();
	__u32 table, sum = 0, i;

	if (!s)
		return 0;
	table = ((__u32)s->cell.body_len + 1) & ~1u;
	for (i = 0; i < FAST_RECORDS; i++) {
		__u32 off, ttl, new_ttl, delta;
		__u8 *field;

		if (i >= s->cell.records)
			break;
		off = get16(s->data + ((table + 2 * i) & 1023)) & 1023;
		field = s->data + off;
		ttl = get32(field);
		new_ttl = bpf_htonl(ttl);
		new_ttl = bpf_htonl(new_ttl > age ? new_ttl - age : 0);
		get32(field) = new_ttl;
		delta = (new_ttl & 0xffff) + (new_ttl >> 16) + (~ttl & 0xffff) + (~ttl >> 16);
		delta = (delta & 0xffff) + (delta >> 16);
		delta = (delta & 0xffff) + (delta >> 16);
		if (off & 1)
			delta = (delta & 0xff) << 8 | delta >> 8;
		sum += delta;
	}
	return sum;
}

/* Makes data, the body of length len, end with an OPT record. Returns what this
 * adds to the sum of the body. */
static __always_inline __u32 append_opt(struct scratch *s, __u32 len)
{
	__u8 *o = s->data + (len & 1023);
	__u32 sum;

	o[0] = 0;
	o[1] = 0;
	o[2] = 41;
	o[3] = 1232 >> 8;
	o[4] = 1232 & 0xff;
	o[5] = 0;
	o[6] = 0;
	o[7] = s->opt_do << 7;
	o[8] = 0;
	o[9] = 0;
	o[10] = 0;
	sum = bpf_htons(41 << 8 | 1232 >> 8) + bpf_htons((1232 & 0xff) << 8) + bpf_htons(s->opt_do << 7);
	if (!(len & 1))
		return sum;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xff) << 8 | sum >> 8;
}

/* Counts a sampled answer for its cell and its client. */
__attribute__((noinline)) int count_sample(__u32 number)
{
	struct cell_head *live = live_cell(number);
	struct scratch *s = scratch();
	struct lease_hits *hits;
	__u32 list, lease;

	if (live) /* an update that is lost does not matter */
		live->hits += 8;
	if (!s)
		return 0;
	lease = s->lease;
	hits = bpf_map_lookup_elem(&hits_of_leases, &lease);
	list = s->cell.list;
	if (list >= LEASE_LISTS)
		list = LEASE_LISTS - 1;
	if (hits)
		__sync_fetch_and_add(&hits->lists[list], 8);
	return 0;
}

/* The bucket of the metrics' histograms of sizes. */
static __always_inline __u32 size_bucket(__u32 n)
{
	if (n > 511)
		return 6;
	/* n / 100 rounded up; the verifier does not follow divisions. */
	return n > 400 ? 5 : (n + 99) * 41 >> 12;
}

static __always_inline void count_answer(struct scratch *s, int v6, __u32 query, __u32 reply)
{
	__u32 zone = s->cell.zone;
	struct zone_stats *st = bpf_map_lookup_elem(&stats, &zone);
	__u32 type = s->cell.type, judged = s->cell.judged;

	if (!st)
		return;
	if (judged < FAST_JUDGED)
		st->judged[judged]++;
	if (type < FAST_TYPES)
		st->types[v6][type]++;
	st->rcodes[s->cell.rcode & 15]++;
	st->lookups[s->cell.denial & 1]++;
	st->dnssec_ok += s->opt_do & 1;
	st->query_sizes[size_bucket(query)]++;
	st->query_bytes += query;
	st->reply_sizes[size_bucket(reply)]++;
	st->reply_bytes += reply;
}

/* Notes for the daemon on which interface a query was passed: the tag of its client,
 * port, ID and time in the upper half, the interface in the lower half. */
__attribute__((noinline)) int note(void)
{
	struct scratch *s = scratch();
	__u64 h = hash_seed;
	__u64 *n;
	__u32 i;

	if (!s)
		return 0;
	h = mix(h, get64(&s->client[0]));
	h = mix(h, get64(&s->client[2]));
	h = mix(h, s->nonce);
	h = mix(h, s->now >> NOTE_SHIFT);
	i = h % FAST_NOTES;
	n = bpf_map_lookup_elem(&notes, &i);
	if (n)
		*(volatile __u64 *)n = (h >> 32) << 32 | s->ifindex;
	return 0;
}

static __always_inline void count_reason(enum pass_reason why)
{
	__u32 key = why;
	__u64 *n = bpf_map_lookup_elem(&passed, &key);

	if (n)
		(*n)++;
}

static __always_inline int pass(enum pass_reason why)
{
	count_reason(why);
	note();
	return TCX_NEXT;
}

static __always_inline void swap16(__u8 *a, __u8 *b)
{
	__u16 t = get16(a);

	get16(a) = get16(b);
	get16(b) = t;
}

static __always_inline void swap32(__u8 *a, __u8 *b)
{
	__u32 t = get32(a);

	get32(a) = get32(b);
	get32(b) = t;
}

/* Makes the headers in head those of a reply with len bytes behind the IP header. */
static __always_inline void turn_headers(struct scratch *s, int v6, __u32 len)
{
	__u8 *eth = s->head, *ip = eth + L2_LEN, *udp = ip + (v6 ? 40 : 20);
	__u32 sum = 0, i;

	swap32(eth, eth + 6);
	swap16(eth + 4, eth + 10);
	if (v6) {
		get32(ip) = bpf_htonl(0x60000000);
		get16(ip + 4) = bpf_htons(len);
		ip[7] = 64;
#pragma unroll
		for (i = 0; i < 16; i += 4)
			swap32(ip + 8 + i, ip + 24 + i);
	} else {
		ip[1] = 0;
		get16(ip + 2) = bpf_htons(len + 20);
		get16(ip + 4) = 0;
		get16(ip + 6) = bpf_htons(0x4000); /* do not fragment */
		ip[8] = 64;
		get16(ip + 10) = 0;
		swap32(ip + 12, ip + 16);
#pragma unroll
		for (i = 0; i < 20; i += 2)
			sum += get16(ip + i);
		sum = (sum & 0xffff) + (sum >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		get16(ip + 10) = ~sum;
	}
	swap16(udp, udp + 2);
	get16(udp + 4) = bpf_htons(len);
}

/* Makes the DNS header that of the reply. Returns what this adds to its sum. */
static __always_inline __u32 turn_dns(struct scratch *s, __u8 *dns)
{
	__u32 sum = (~get16(dns + 2) & 0xffff) + (~get16(dns + 10) & 0xffff);

	get16(dns + 2) = s->cell.flags | (get16(dns + 2) & bpf_htons(0x0100)); /* RD */
	get16(dns + 6) = s->cell.counts[0];
	get16(dns + 8) = s->cell.counts[1];
	get16(dns + 10) = s->opt_len ? bpf_htons(bpf_htons(s->cell.counts[2]) + 1) : s->cell.counts[2];
	return sum + get16(dns + 2) + get16(dns + 6) + get16(dns + 8) + get16(dns + 10);
}

/* Reports whether the headers in head are those of a plain query with len bytes in
 * all: no options, no fragment, nothing behind it. */
static __always_inline int plain_headers(struct scratch *s, int v6, __u32 len)
{
	__u8 *ip = s->head + L2_LEN, *udp = ip + (v6 ? 40 : 20), *dns = udp + UDP_LEN;

	if (v6) {
		if (ip[0] >> 4 != 6 || get16(ip + 4) != bpf_htons(len - L2_LEN - 40))
			return 0;
		len -= L2_LEN + 40;
	} else {
		if (ip[0] != 0x45 || get16(ip + 2) != bpf_htons(len - L2_LEN) || get16(ip + 6) & ~bpf_htons(0x4000))
			return 0;
		len -= L2_LEN + 20;
	}
	if (get16(udp + 4) != bpf_htons(len) || !get16(udp + 6))
		return 0;
	return !(dns[2] & 0xf8) && get16(dns + 4) == bpf_htons(1) && !get32(dns + 6) && get16(dns + 10) <= bpf_htons(1) &&
	       !dns[10];
}

static __always_inline void read_addresses(struct scratch *s, int v6)
{
	__u8 *ip = s->head + L2_LEN;
	__u32 i;

	if (v6) {
#pragma unroll
		for (i = 0; i < 4; i++) {
			s->client[i] = get32(ip + 8 + 4 * i);
			s->key.addr[i] = get32(ip + 24 + 4 * i);
		}
		return;
	}
	s->client[0] = s->client[1] = s->key.addr[0] = s->key.addr[1] = 0;
	s->client[2] = s->key.addr[2] = bpf_htonl(0xffff);
	s->client[3] = get32(ip + 12);
	s->key.addr[3] = get32(ip + 16);
}

/* Reads the question and the OPT record, the n bytes behind the DNS header, and sets
 * the key. Returns the length of the name, 0 if the query is unusual. */
static __always_inline __u32 read_question(struct __sk_buff *skb, struct scratch *s, __u32 off, __u32 n, const __u8 *dns)
{
	__u32 len, i;
	__u64 at;
	__u8 flags;

	if (n < 5 || n > MAX_REST)
		return 0;
#pragma unroll
	for (i = 0; i < sizeof(s->rest) / 8; i++)
		s->rest[i] = 0;
	if (bpf_skb_load_bytes(skb, off, s->rest, n))
		return 0;
	s->opt_len = s->opt_sum = s->opt_do = 0;
	s->opt_size = 512;
	if (dns[11] && !parse_opt(n))
		return 0;
	len = n - s->opt_len - 4;
	if (len < 1 || len > LARGE_NAME)
		return 0;
	at = len;
	bound(at, 127);
	s->key.type_class = get32((__u8 *)s->rest + at);
	s->key.name_len = len;
	flags = s->opt_do ? KEY_DO : 0;
	if (dns[3] & 0x10)
		flags |= KEY_CD;
	if (dns[3] & 0x20 && !s->opt_do)
		flags |= KEY_AD;
	s->key.flags = flags;
	return len;
}

/* Writes the reply, len bytes of body from cell number, counts it and sends it into
 * the pod. sum is the difference of the UDP payload. */
static __always_inline int send(struct __sk_buff *skb, struct scratch *s, int v6, __u32 number, __u32 question,
				__u32 len, __u32 sum)
{
	const __u32 udp = L2_LEN + (v6 ? 40 : 20), csum = udp + 6, dns = udp + UDP_LEN;
	__u32 off = dns + DNS_LEN + question, query = skb->len - dns;
	__u16 before = get16(s->head + udp + 4);
	__u16 after = bpf_htons(off + len - udp);

	turn_headers(s, v6, off + len - udp);
	if (bpf_skb_change_tail(skb, off + len, 0))
		return pass(PASS_FAILED); /* nothing is written yet */
	len &= 1023;
	if (bpf_skb_store_bytes(skb, 0, s->head, dns + DNS_LEN, 0) ||
	    (len && bpf_skb_store_bytes(skb, off, s->data, len, 0)) ||
	    bpf_l4_csum_replace(skb, csum, before, after, BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0 | 2) ||
	    bpf_l4_csum_replace(skb, csum, 0, sum + (~before & 0xffff) + after, BPF_F_MARK_MANGLED_0)) {
		count_reason(PASS_LOST);
		return TC_ACT_SHOT;
	}
	if (s->sampled)
		count_sample(number);
	count_answer(s, v6, query, off + len - dns);
	/* On a port of a bridge the query is for another MAC address. Before Linux 6.15
	 * redirect_peer does not correct the type, and the pod would drop the reply. */
	if (skb->pkt_type != PACKET_HOST)
		bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(skb->ifindex, 0);
}

static __always_inline int answer(struct __sk_buff *skb, struct scratch *s, const int v6)
{
	const __u32 udp = L2_LEN + (v6 ? 40 : 20), dns = udp + UDP_LEN, rest = dns + DNS_LEN;
	__u64 now = bpf_ktime_get_coarse_ns();
	__u32 zero = 0, number, name, limit, reply, sum, len;
	struct settings *set = bpf_map_lookup_elem(&control, &zero);
	enum pass_reason why;
	__be16 port;

	if (!set || bpf_skb_load_bytes(skb, 0, s->head, rest) || s->head[L2_LEN + (v6 ? 6 : 9)] != IPPROTO_UDP)
		return TCX_NEXT;
	port = get16(s->head + udp + 2);
	if (port != set->ports[0] && port != set->ports[1] && port != set->ports[2] && port != set->ports[3])
		return TCX_NEXT;
	read_addresses(s, v6);
	s->ifindex = skb->ifindex;
	s->now = now;
	s->nonce = get16(s->head + udp) | (__u32)get16(s->head + dns) << 16;
	s->key.port = port;
	if (!leased(now))
		return pass(PASS_NO_LEASE);
	if (skb->vlan_present || !plain_headers(s, v6, skb->len))
		return pass(PASS_UNUSUAL);
	name = read_question(skb, s, rest, skb->len - rest, s->head + dns);
	if (!name)
		return pass(PASS_UNUSUAL);
	s->sampled = !((s->head[udp + 1] ^ s->head[dns + 1]) & 7);
	number = find_cell(make_key(name));
	if (!number)
		return pass(PASS_NOT_FOUND);
	why = take_cell(number - 1, now);
	if (why != FAST_ANSWERED)
		return pass(why);
	len = s->cell.body_len;
	reply = DNS_LEN + name + 4 + len;
	limit = 512;
	if (s->opt_len) {
		limit = s->opt_size < 512 ? 512 : s->opt_size > 1232 ? 1232 : s->opt_size;
		reply += OPT_LEN;
	}
	if (reply > limit || len > LARGE_DATA)
		return pass(PASS_TOO_LARGE);
	if (now >= s->cell.refresh_at && claim_refresh(number - 1))
		return pass(PASS_REFRESH);
	sum = s->cell.body_sum + (~s->opt_sum & 0xffff) + (~(s->opt_sum >> 16) & 0xffff);
	if (s->cell.born && now > s->cell.born)
		sum += age_ttls((now - s->cell.born) / 1000000000);
	if (s->opt_len) {
		sum += append_opt(s, len);
		len += OPT_LEN;
	}
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	if (name & 1)
		sum = (sum & 0xff) << 8 | sum >> 8;
	sum += turn_dns(s, s->head + dns);
	return send(skb, s, v6, number - 1, name + 4, len, sum);
}

SEC("tcx/ingress")
int fastpath(struct __sk_buff *skb)
{
	struct scratch *s = scratch();

	if (!s || skb->gso_segs > 1)
		return TCX_NEXT;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return answer(skb, s, 0);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return answer(skb, s, 1);
	return TCX_NEXT;
}

/* Adds the enumerations to BTF, from which the Go types are generated. */
const volatile struct {
	enum limits limits;
	enum pass_reason pass_reason;
} generated = {};

char __license[] SEC("license") = "Dual BSD/GPL";
