/*
 * lookup [-4|-6|-c|-x] NAME...
 *
 * Looks up all the names at once by getaddrinfo, each in a process of its own.
 * When a lookup ends it prints a line: the name, the milliseconds, and the
 * addresses or the name of the error. -4 and -6 ask for one address family, -c for
 * those that the machine has addresses of (AI_ADDRCONFIG). With -x the names are
 * IPv4 addresses, and it prints their names.
 */
#define _GNU_SOURCE /* EAI_NODATA */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int reverse;

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

/* name_of is getaddrinfo for a reverse lookup; text takes NI_MAXHOST bytes. */
static int name_of(const char *ip, char *text)
{
	struct sockaddr_in sa = { .sin_family = AF_INET };

	if (inet_pton(AF_INET, ip, &sa.sin_addr) != 1)
		return EAI_FAIL;
	return getnameinfo((struct sockaddr *)&sa, sizeof(sa), text, NI_MAXHOST, NULL, 0, NI_NAMEREQD);
}

/* The line is shorter than PIPE_BUF, so that one write prints it whole. */
static int lookup(const char *name, struct addrinfo hints)
{
	struct addrinfo *list = NULL, *ai;
	char line[4096], text[NI_MAXHOST] = "";
	long began = now_ms();
	int err = reverse ? name_of(name, text) : getaddrinfo(name, NULL, &hints, &list);
	int len = snprintf(line, 512, "%s %ld", name, now_ms() - began);

	if (err || reverse)
		len += snprintf(line + len, 1100, " %s", err ? error(err) : text);
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
		else if (argv[1][1] == 'x')
			reverse = 1;
		else
			hints.ai_flags = AI_ADDRCONFIG;
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
