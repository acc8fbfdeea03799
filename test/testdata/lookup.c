/*
 * lookup NAME [4|6]   every address of NAME, one a line
 * lookup -x ADDRESS   the name of an IPv4 address
 *
 * A failure prints the name of the getaddrinfo error and exits with 1.
 */
#define _GNU_SOURCE /* EAI_NODATA */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static int fail(int err)
{
	switch (err) {
	case EAI_AGAIN:
		puts("EAI_AGAIN");
		break;
	case EAI_FAIL:
		puts("EAI_FAIL");
		break;
	case EAI_NONAME:
		puts("EAI_NONAME");
		break;
#ifdef EAI_NODATA
	case EAI_NODATA:
		puts("EAI_NODATA");
		break;
#endif
	default:
		puts(gai_strerror(err));
	}
	return 1;
}

static int reverse(const char *text)
{
	struct sockaddr_in sa = { .sin_family = AF_INET };
	char name[NI_MAXHOST];
	int err;

	if (inet_pton(AF_INET, text, &sa.sin_addr) != 1) {
		puts("not an IPv4 address");
		return 2;
	}
	err = getnameinfo((struct sockaddr *)&sa, sizeof(sa), name, sizeof(name), NULL, 0, NI_NAMEREQD);
	if (err)
		return fail(err);
	puts(name);
	return 0;
}

static int forward(const char *name, int family)
{
	struct addrinfo hints = { .ai_family = family, .ai_socktype = SOCK_STREAM };
	struct addrinfo *list, *ai;
	char text[INET6_ADDRSTRLEN];
	int err = getaddrinfo(name, NULL, &hints, &list);

	if (err)
		return fail(err);
	for (ai = list; ai; ai = ai->ai_next) {
		const void *addr = ai->ai_family == AF_INET
			? (const void *)&((struct sockaddr_in *)ai->ai_addr)->sin_addr
			: (const void *)&((struct sockaddr_in6 *)ai->ai_addr)->sin6_addr;
		puts(inet_ntop(ai->ai_family, addr, text, sizeof(text)));
	}
	freeaddrinfo(list);
	return 0;
}

int main(int argc, char **argv)
{
	int family = AF_UNSPEC;

	if (argc == 3 && !strcmp(argv[1], "-x"))
		return reverse(argv[2]);
	if (argc == 3)
		family = *argv[2] == '6' ? AF_INET6 : AF_INET;
	if (argc < 2) {
		fputs("usage: lookup NAME [4|6] | lookup -x ADDRESS\n", stderr);
		return 2;
	}
	return forward(argv[1], family);
}
