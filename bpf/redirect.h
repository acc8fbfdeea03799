/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What the programs share with the loader. The Go types and constants are
 * generated from here. A change of any of it is a new shape of the maps: see
 * shapeVersion in pin.go.
 */
#ifndef NODENS_REDIRECT_H
#define NODENS_REDIRECT_H

#include "abi.h"

enum limits {
	MAX_SERVICES = 64,
	MAX_PORTS = 4,
	MAX_FALLBACKS = 8,
	MAX_FLOWS = 3,
	MAX_EXEMPT = 64,
	MAX_OPTED_OUT = 4096,
	/* How deep a container's cgroup may lie, counted from the root. */
	MAX_LEVELS = 12,
	/* How long after the last beat of a daemon that is gone nobody can be relied
	 * on to have followed the fallbacks. */
	LONG_GONE_SECONDS = 60,
};

/* The programs, as they index the counters. */
enum hook {
	HOOK_CONNECT4,
	HOOK_CONNECT6,
	HOOK_SENDMSG4,
	HOOK_SENDMSG6,
	HOOK_RECVMSG4,
	HOOK_RECVMSG6,
	HOOK_GETPEERNAME4,
	HOOK_GETPEERNAME6,
	HOOK_COUNT,
};

/* Why a program ended. Every run of a program counts exactly one. */
enum exit_reason {
	EXIT_REDIRECTED,      /* now goes to the target */
	EXIT_FALLBACK_GONE,   /* now goes to a fallback: no canary */
	EXIT_FALLBACK_HUNG,   /* now goes to a fallback: the heartbeat is late */
	EXIT_PASSED_GONE,     /* left alone, as the service asks for: no canary */
	EXIT_PASSED_HUNG,     /* left alone, as the service asks for: heartbeat late */
	EXIT_NO_FALLBACK,     /* left alone: not alive, and no fallback is known */
	EXIT_OTHER_PORT,      /* no service has this port */
	EXIT_OTHER_PROTOCOL,  /* neither UDP nor TCP */
	EXIT_OTHER_ADDRESS,   /* no service has this address and port */
	EXIT_EXEMPT,          /* left alone: network namespace exempt while alive */
	EXIT_OPTED_OUT,       /* left alone: cgroup opted out */
	EXIT_NO_STORAGE,      /* left alone: the kernel had no room for the state */
	EXIT_RESTORED,        /* reverse: shown as the original destination */
	EXIT_NO_FLOWS,        /* reverse: nothing was redirected on this socket */
	EXIT_OTHER_PEER,      /* reverse: not a peer that was put in by us */
	EXIT_NOT_CONFIGURED,  /* the configuration map is empty */
	EXIT_CONNECTED,       /* left alone: sent to the peer that the socket is connected to */
	EXIT_COUNT,
};

/* An IPv6 or v4-mapped address and a port, in network byte order. */
struct endpoint {
	__be32 addr[4];
	__be16 port;
	__u16 pad; /* zero: endpoints are hashed as bytes */
};

enum service_flags {
	SERVICE_PASS_THROUGH = 1 << 0, /* not alive: leave alone */
	SERVICE_PROXIED = 1 << 1,      /* long gone: leave alone, others deliver it */
};

struct service {
	struct endpoint target;
	struct endpoint fallback[MAX_FALLBACKS];
	__u32 fallbacks; /* how many of them are set */
	__u32 flags;
};

struct settings {
	__u64 heartbeat_timeout; /* ns */
	__u32 opted_out;         /* non-zero: some cgroup is */
	__u32 pad;
	__be16 ports[MAX_PORTS]; /* of all services; unused ones are zero */
};

/* A destination that was put in, and the one that the application asked for. */
struct flow {
	struct endpoint target;
	struct endpoint original;
};

/* A socket's redirected destinations. All hooks of a socket but getpeername run
 * under its lock; getpeername only reads. */
struct socket_flows {
	struct flow flow[MAX_FLOWS];
	__u32 next; /* the one to replace */
};

#endif
