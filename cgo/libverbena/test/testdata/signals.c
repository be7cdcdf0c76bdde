// Signals of a program that uses the verbs: signals WHEN HOW SIGNAL, where the program blocks the
// signal WHEN (before, after) its first verb, and takes it HOW.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

// CHECK ends the process if a condition does not hold.
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not so: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno)); \
			_exit(1); \
		} \
	} while (0)

static int number;
static sigset_t set;
static pthread_t program; // the thread that takes the signal
static volatile sig_atomic_t handled;

static void block(void)
{
	CHECK(!pthread_sigmask(SIG_BLOCK, &set, NULL));
}

// use_verbs also checks that the verbs leave the thread's mask as it was.
static void *use_verbs(void *unused)
{
	struct ibv_device **list;
	struct ibv_context *context;
	struct ibv_port_attr attr;
	sigset_t before, after;

	CHECK(!pthread_sigmask(SIG_SETMASK, NULL, &before));
	CHECK((list = ibv_get_device_list(NULL)) && list[0]);
	CHECK(context = ibv_open_device(list[0]));
	CHECK(!ibv_query_port(context, 1, &attr));
	CHECK(!ibv_close_device(context));
	ibv_free_device_list(list);
	CHECK(!pthread_sigmask(SIG_SETMASK, NULL, &after));
	CHECK(sigismember(&before, number) == sigismember(&after, number));
	return unused;
}

static void by_signalfd(void)
{
	static int fd;
	struct signalfd_siginfo info;

	if (!fd)
		CHECK((fd = signalfd(-1, &set, SFD_NONBLOCK)) > 0);
	CHECK(read(fd, &info, sizeof info) == sizeof info && (int)info.ssi_signo == number);
}

static void by_sigwait(void)
{
	sigset_t pending;
	int got;

	CHECK(!sigpending(&pending) && sigismember(&pending, number));
	CHECK(!sigwait(&set, &got) && got == number);
}

static void by_sigtimedwait(void)
{
	static const struct timespec at_once;

	CHECK(sigtimedwait(&set, NULL, &at_once) == number);
}

static void handler(int got)
{
	CHECK(got == number);
	CHECK(pthread_equal(pthread_self(), program));
	handled++;
}

static void by_handler(void)
{
	sigset_t open;
	int before = handled;

	CHECK(!sigpending(&open) && sigismember(&open, number));
	CHECK(!pthread_sigmask(SIG_SETMASK, NULL, &open) && !sigdelset(&open, number));
	CHECK(sigsuspend(&open) == -1 && errno == EINTR);
	CHECK(handled == before + 1);
}

static const struct {
	const char *name;
	void (*take)(void);
} ways[] = {{"signalfd", by_signalfd}, {"sigwait", by_sigwait}, {"sigtimedwait", by_sigtimedwait}, {"handler", by_handler}};

int main(int argc, char **argv)
{
	void (*take)(void) = NULL;

	CHECK(argc == 4);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		if (strcmp(ways[i].name, argv[2]) == 0)
			take = ways[i].take;
	CHECK(take);
	number = atoi(argv[3]);
	signal(number, SIG_DFL); // nohup(1), for one, ignores SIGHUP
	program = pthread_self();
	sigemptyset(&set);
	sigaddset(&set, number);
	if (strcmp(argv[1], "before") == 0)
		block();
	if (take == by_handler)
		CHECK(signal(number, handler) == SIG_DFL);
	use_verbs(NULL);
	block();
	for (int i = 0; i < 200; i++) {
		pthread_t thread;

		if (i % 20 == 0) { // another thread's first verb and its end
			CHECK(!pthread_create(&thread, NULL, use_verbs, NULL));
			CHECK(!pthread_join(thread, NULL));
		}
		CHECK(!kill(getpid(), number));
		if (i % 4 == 0)
			usleep(200); // for a thread that does not block the signal
		take();
	}
	return 0;
}
