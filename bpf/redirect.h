/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Types that the programs share with the loader. The Go types and constants are
 * generated from them. With any change, increase layoutVersion in pin.go.
 */
#ifndef NODENS_REDIRECT_H
#define NODENS_REDIRECT_H

#include "abi.h"

enum limits {
	MAX_SERVICES = 64,
	MAX_PORTS = 4,
	MAX_FALLBACKS = 8,
	MAX_ORIGINS = 640, /* targets and fallbacks */
	MAX_FLOWS = 3,
	MAX_EXEMPT = 64,
	MAX_OPTED_OUT = 4096,
	/* Depth of a container's cgroup below the root, at most. */
	MAX_LEVELS = 12,
	/* If a daemon is gone for so long, the fallbacks may be out of date. */
	LONG_GONE_SECONDS = 60,
	/* After so long, none of them may exist any more. */
	LOST_SECONDS = 600,
};

/* The programs, as indexes of the counters. */
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

/* Why a program ended. Each run counts exactly one reason. */
enum exit_reason {
	EXIT_REDIRECTED,      /* sent to the target */
	EXIT_FALLBACK_GONE,   /* sent to a fallback: no canary */
	EXIT_FALLBACK_HUNG,   /* sent to a fallback: late heartbeat */
	EXIT_PASSED_GONE,     /* not redirected, by the service's flags: no canary */
	EXIT_PASSED_HUNG,     /* not redirected, by the service's flags: late heartbeat */
	EXIT_NO_FALLBACK,     /* not redirected: not alive, and no fallback is known */
	EXIT_OTHER_PORT,      /* no service has this port */
	EXIT_OTHER_PROTOCOL,  /* neither UDP nor TCP */
	EXIT_OTHER_ADDRESS,   /* no service has this address and port */
	EXIT_EXEMPT,          /* not redirected: the network namespace is exempt while alive */
	EXIT_OPTED_OUT,       /* not redirected: the cgroup has opted out */
	EXIT_NO_STORAGE,      /* not redirected: the kernel had no memory for the flow */
	EXIT_RESTORED,        /* reverse: replaced by the original destination */
	EXIT_NO_FLOWS,        /* reverse: nothing was redirected on this socket */
	EXIT_OTHER_PEER,      /* reverse: the peer is not a target or fallback of this socket */
	EXIT_NOT_CONFIGURED,  /* the map config is empty */
	EXIT_CONNECTED,       /* not redirected: the socket is connected to this destination */
	EXIT_COUNT,
};

/* An IPv6 or v4-mapped address and a port, in network byte order. */
struct endpoint {
	__be32 addr[4];
	__be16 port;
	__u16 pad; /* zero: the hash covers all bytes */
};

enum service_flags {
	SERVICE_PASS_THROUGH = 1 << 0, /* do not redirect while not alive */
	SERVICE_PROXIED = 1 << 1,      /* do not redirect while LONG_GONE: the service proxy delivers it */
};

struct service {
	struct endpoint target;
	struct endpoint fallback[MAX_FALLBACKS];
	struct endpoint last_resort; /* while LOST; without one its port is 0 */
	__u32 fallbacks; /* number of fallbacks */
	__u32 flags;
};

struct settings {
	__u64 heartbeat_timeout; /* ns */
	__u32 opted_out;         /* non-zero: the map opted_out is not empty */
	__u32 pad;
	__be16 ports[MAX_PORTS]; /* of all services; unused ones are zero */
};

/* A target or fallback, and the destination that the application used. */
struct flow {
	struct endpoint target;
	struct endpoint original;
};

/* The flows of a socket. All its hooks except getpeername run under the socket's
 * lock; getpeername only reads. */
struct socket_flows {
	struct flow flow[MAX_FLOWS];
	__u32 next; /* index of the flow to replace */
};

#endif
