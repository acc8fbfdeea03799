/*
 * client SUFFIX RATE THREADS [POPULAR]
 *
 * Looks up new names below SUFFIX by getaddrinfo for both address families, RATE
 * a second by THREADS threads. With POPULAR every second lookup is of that name.
 *
 * Prints a line at once for a lookup that fails, and for one that takes at least
 * 2.4 seconds (musl retries after 2.5 and glibc after 5):
 *	failed|slow NAME MILLISECONDS REASON
 * An answer without an address of each family is a failure; POPULAR needs an
 * address of any family.
 *
 * On SIGUSR1 it waits for the running lookups and prints, of all lookups since the
 * last such line:
 *	round COUNT FAILED LONGEST-MILLISECONDS
 * SIGTERM does the same and ends it.
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

#define SLOW_MS 2400

static const char *suffix, *popular;
static long period_ns; /* of each thread */
static int threads;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t passed = PTHREAD_COND_INITIALIZER;
static long round_now; /* each signal starts one */
static long *round_of; /* per thread: its running lookup started in this round or later */
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

/* lookup returns NULL or the reason for a failure. */
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
	if (name == popular)
		return NULL;
	if (!v4)
		return "no IPv4 address";
	return v6 ? NULL : "no IPv6 address";
}

static void note(long me, const char *name, long ms, const char *reason)
{
	pthread_mutex_lock(&lock);
	count++;
	if (ms > longest_ms)
		longest_ms = ms;
	if (reason)
		failures++;
	if (reason || ms >= SLOW_MS) {
		printf("%s %s %ld %s\n", reason ? "failed" : "slow", name, ms, reason ? reason : "");
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
	char fresh[256];

	for (i = 0;; i++, due += period_ns) {
		const char *name = fresh, *reason;
		long long start;

		sleep_until(due);
		if (popular && i % 2)
			name = popular;
		else
			snprintf(fresh, sizeof(fresh), "n%ld-%ld.%s", me, i, suffix);
		start = now_ns();
		reason = lookup(name);
		note(me, name, (now_ns() - start) / 1000000, reason);
		if (now_ns() > due + period_ns)
			due = now_ns(); /* do not catch up after a slow lookup */
	}
	return NULL;
}

/* end_round waits for the lookups that are running when it is called. */
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

	if (argc != 4 && argc != 5) {
		fputs("usage: client SUFFIX RATE THREADS [POPULAR]\n", stderr);
		return 2;
	}
	suffix = argv[1];
	threads = atoi(argv[3]);
	popular = argv[4]; /* NULL if it is not given */
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
	do {
		if (sigwait(&set, &sig))
			return 1;
		end_round();
	} while (sig != SIGTERM);
	return 0;
}
