/*
 * client SUFFIX RATE THREADS
 *
 * Looks up names below SUFFIX, each once, by getaddrinfo for both families, RATE
 * times a second by THREADS threads. On SIGUSR1 it waits until every thread has
 * ended what it was at, and prints
 *	round COUNT FAILED LONGEST-MILLISECONDS
 * of the look-ups since the last such line. It prints
 *	failed NAME MILLISECONDS REASON
 * at once for every one that fails, one that lacks a family too. SIGTERM ends it.
 */
#define _GNU_SOURCE
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static const char *suffix;
static long period_ns; /* of each thread */
static int threads;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t passed = PTHREAD_COND_INITIALIZER;
static long round_now; /* each SIGUSR1 begins one */
static long *round_of; /* each thread's: it has nothing under way of those before */
static long count, failures, longest_ms;

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

static void note(long me, const char *name, long ms, const char *wrong)
{
	pthread_mutex_lock(&lock);
	count++;
	if (ms > longest_ms)
		longest_ms = ms;
	if (wrong) {
		failures++;
		printf("failed %s %ld %s\n", name, ms, wrong);
		fflush(stdout);
	}
	round_of[me] = round_now;
	pthread_cond_signal(&passed);
	pthread_mutex_unlock(&lock);
}

static void *client(void *arg)
{
	long me = (long)arg, i;
	long long due = now_ns() + me * (period_ns / threads);
	char name[256];

	for (i = 0;; i++, due += period_ns) {
		long long start;
		const char *wrong;

		sleep_until(due);
		snprintf(name, sizeof(name), "n%ld-%ld.%s", me, i, suffix);
		start = now_ns();
		wrong = lookup(name);
		note(me, name, (now_ns() - start) / 1000000, wrong);
		if (now_ns() > due + period_ns)
			due = now_ns(); /* do not make up for what took long */
	}
	return NULL;
}

/* end_round waits until no look-up is under way that began before. */
static void end_round(void)
{
	long i;

	pthread_mutex_lock(&lock);
	round_now++;
	for (i = 0; i < threads; i++)
		while (round_of[i] < round_now)
			pthread_cond_wait(&passed, &lock);
	printf("round %ld %ld %ld\n", count, failures, longest_ms);
	fflush(stdout);
	count = failures = longest_ms = 0;
	pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv)
{
	pthread_t t;
	sigset_t set;
	long i;
	int sig;

	if (argc != 4) {
		fputs("usage: client SUFFIX RATE THREADS\n", stderr);
		return 2;
	}
	suffix = argv[1];
	threads = atoi(argv[3]);
	period_ns = 1000000000LL * threads / atoi(argv[2]);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	round_of = calloc(threads, sizeof(*round_of));
	for (i = 0; i < threads; i++)
		if (pthread_create(&t, NULL, client, (void *)i))
			return 1;
	puts("started");
	fflush(stdout);
	for (;;) {
		if (sigwait(&set, &sig) || sig == SIGTERM)
			return 0;
		end_round();
	}
}
