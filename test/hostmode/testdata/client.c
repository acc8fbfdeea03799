/*
 * client SUFFIX RATE THREADS
 *
 * Looks up nI.SUFFIX by getaddrinfo for both families, I counting up, and by
 * turns popular.SUFFIX, RATE times a second by THREADS threads. Prints a line
 *	slow|failed NAME MILLISECONDS REASON
 * for every look-up that fails or takes 2.4 seconds, for musl asks again after 2.5
 * and glibc after 5, and on SIGTERM
 *	done COUNT LONGEST-MILLISECONDS
 * An answer that lacks a family is a failure: every name has both.
 */
#define _GNU_SOURCE
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *suffix;
static long period_ns; /* of each thread */
static int threads;
static atomic_long count, longest_ms;
static atomic_int stopping;

static long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sleep_until(long long ns)
{
	struct timespec t = { .tv_sec = ns / 1000000000LL, .tv_nsec = ns % 1000000000LL };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

/* lookup returns NULL or what is wrong. */
static const char *lookup(const char *name)
{
	struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
	struct addrinfo *list, *ai;
	int v4 = 0, v6 = 0, err = getaddrinfo(name, NULL, &hints, &list);

	if (err)
		return gai_strerror(err);
	for (ai = list; ai; ai = ai->ai_next) {
		v4 |= ai->ai_family == AF_INET;
		v6 |= ai->ai_family == AF_INET6;
	}
	freeaddrinfo(list);
	if (!v4)
		return "no IPv4 address";
	return v6 ? NULL : "no IPv6 address";
}

static void *client(void *arg)
{
	long me = (long)arg, i;
	long long due = now_ns() + me * (period_ns / threads);
	char name[256];

	for (i = 0; !stopping; i++, due += period_ns) {
		long long start;
		const char *wrong;
		long ms, old;

		sleep_until(due);
		if (i % 2)
			snprintf(name, sizeof(name), "popular.%s", suffix);
		else
			snprintf(name, sizeof(name), "n%ld-%ld.%s", me, i, suffix);
		start = now_ns();
		wrong = lookup(name);
		ms = (now_ns() - start) / 1000000;
		count++;
		for (old = longest_ms; ms > old && !atomic_compare_exchange_weak(&longest_ms, &old, ms);)
			;
		if (wrong || ms >= 2400) {
			printf("%s %s %ld %s\n", wrong ? "failed" : "slow", name, ms, wrong ? wrong : "");
			fflush(stdout);
		}
		if (now_ns() > due + period_ns)
			due = now_ns(); /* do not make up for what took long */
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t *t;
	sigset_t set;
	long i;
	int sig;

	if (argc != 4) {
		fputs("usage: client SUFFIX RATE THREADS\n", stderr);
		return 2;
	}
	suffix = argv[1];
	threads = atoi(argv[3]);
	period_ns = 1000000000L * threads / atoi(argv[2]);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	t = calloc(threads, sizeof(*t));
	for (i = 0; i < threads; i++)
		if (pthread_create(&t[i], NULL, client, (void *)i))
			return 1;
	puts("started");
	fflush(stdout);
	sigwait(&set, &sig);
	stopping = 1;
	for (i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	printf("done %ld %ld\n", (long)count, (long)longest_ms);
	return 0;
}
