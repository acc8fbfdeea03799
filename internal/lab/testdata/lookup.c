/*
 * lookup [-4|-6|-c|-x|-s] NAME...
 *
 * Looks up all the names at once, each in a process of its own.
 * When a lookup ends it prints a line: the name, the milliseconds, and the
 * addresses or the name of the error. -4 and -6 ask for one address family, -c for
 * those that the machine has addresses of (AI_ADDRCONFIG). With -x the names are
 * addresses, and it prints their names. -s prints SRV records, with commas
 * between their fields.
 */
#define _GNU_SOURCE /* EAI_NODATA */
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <resolv.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char what; /* 'x' or 's', the option; 0: addresses */

static const char *error(int err)
{
	switch (err) {
	case EAI_AGAIN:
		return "EAI_AGAIN";
	case EAI_FAIL:
		return "EAI_FAIL";
	case EAI_NONAME:
		return "EAI_NONAME";
	case EAI_SYSTEM:
		return "EAI_SYSTEM";
#ifdef EAI_NODATA
	case EAI_NODATA:
		return "EAI_NODATA";
#endif
	}
	return "EAI_OTHER";
}

static long now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* name_of is getaddrinfo for a reverse lookup. */
static int name_of(const char *ip, char *text, size_t size)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *a;
	int err = getaddrinfo(ip, NULL, &hints, &a);

	return err ? err : getnameinfo(a->ai_addr, a->ai_addrlen, text, size, NULL, 0, NI_NAMEREQD);
}

/* services_of is getaddrinfo for SRV records (RFC 2782). */
static int services_of(const char *name, char *text, size_t size)
{
	unsigned char answer[4096];
	char target[NS_MAXDNAME];
	ns_msg msg;
	ns_rr rr;
	int len = res_query(name, ns_c_in, ns_t_srv, answer, sizeof(answer));
	size_t used = 0;

	if (len < 0)
		return h_errno == TRY_AGAIN ? EAI_AGAIN : h_errno == NO_RECOVERY ? EAI_FAIL : EAI_NONAME;
	if (ns_initparse(answer, len, &msg))
		return EAI_FAIL;
	for (int i = 0; i < ns_msg_count(msg, ns_s_an); i++) {
		if (ns_parserr(&msg, ns_s_an, i, &rr))
			return EAI_FAIL;
		if (ns_rr_type(rr) != ns_t_srv)
			continue;
		const unsigned char *d = ns_rr_rdata(rr);
		if (ns_rr_rdlen(rr) < 7 || dn_expand(ns_msg_base(msg), ns_msg_end(msg), d + 6, target, sizeof(target)) < 0)
			return EAI_FAIL;
		used += snprintf(text + used, size - used, "%s%u,%u,%u,%s.", used ? " " : "",
			ns_get16(d), ns_get16(d + 2), ns_get16(d + 4), target);
		if (used >= size)
			return EAI_FAIL;
	}
	return used ? 0 : EAI_NONAME;
}

/* The line is shorter than PIPE_BUF, so that one write prints it whole. */
static int lookup(const char *name, struct addrinfo hints)
{
	struct addrinfo *list = NULL, *ai;
	char line[4096], text[3000] = "";
	long began = now_ms();
	int err = what == 'x' ? name_of(name, text, NI_MAXHOST)
		: what == 's' ? services_of(name, text, sizeof(text))
		: getaddrinfo(name, NULL, &hints, &list);
	int len = snprintf(line, 512, "%s %ld", name, now_ms() - began);

	if (err || what)
		len += snprintf(line + len, sizeof(text) + 1, " %s", err ? error(err) : text);
	for (ai = list; ai && len < 4000; ai = ai->ai_next) {
		const void *addr = ai->ai_family == AF_INET
			? (const void *)&((struct sockaddr_in *)ai->ai_addr)->sin_addr
			: (const void *)&((struct sockaddr_in6 *)ai->ai_addr)->sin6_addr;
		inet_ntop(ai->ai_family, addr, text, sizeof(text));
		len += snprintf(line + len, 64, " %s", text);
	}
	line[len++] = '\n';
	return write(STDOUT_FILENO, line, len) == len ? 0 : 1;
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
	int i = 1;

	if (argc > 1 && argv[1][0] == '-') {
		if (argv[1][1] == '4')
			hints.ai_family = AF_INET;
		else if (argv[1][1] == '6')
			hints.ai_family = AF_INET6;
		else if (argv[1][1] == 'c')
			hints.ai_flags = AI_ADDRCONFIG;
		else
			what = argv[1][1];
		i++;
	}
	for (; i < argc; i++) {
		switch (fork()) {
		case -1:
			perror("fork");
			return 2;
		case 0:
			_exit(lookup(argv[i], hints));
		}
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
