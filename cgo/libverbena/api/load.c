// Loading the Go half.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../../internal/version/version.h"
#include "cm.h"
#include "verbena.h"

VB_EXPORT const char verbena_version[] = VERBENA_VERSION;

struct vb_device_functions vb;
_Atomic enum vb_state vb_state;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int load_error = ENOSYS; // in the state VB_FAILED

static const char library[] = "libverbena-device.so";

static void after_fork_in_child(void)
{
	if (vb_state == VB_READY)
		vb_state = VB_FORKED;
	vb_signals_forked();
}

// A thread may use the lock of signals while another forks, also before the Go half is loaded.
__attribute__((constructor)) static void prepare_for_fork(void)
{
	pthread_atfork(NULL, NULL, after_fork_in_child);
}

// block_signals is called before a thread of the library is made, which inherits the mask: signals
// are for the program's threads.
static void block_signals(sigset_t *before)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, before);
}

static void *end_connections(void *unused)
{
	vb_thread_enters();
	vb.cm_exit();
	return unused;
}

// at_exit ends connections, so that peers learn of it, as they do when the kernel closes the files
// of a process. A thread of its own does it, and has a second: exit may have been called by a
// signal handler that interrupted a verb, whose locks are held.
static void at_exit(void)
{
	struct timespec until;
	pthread_t thread;
	sigset_t mask;
	int error;

	if (vb_state != VB_READY || !vb_cm_used)
		return;
	block_signals(&mask);
	error = pthread_create(&thread, NULL, end_connections, NULL);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	if (error)
		return;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	pthread_timedjoin_np(thread, NULL, &until);
}

// path_of_library stores the path of the Go half, which lies beside the C half.
static int path_of_library(char *path, size_t size)
{
	Dl_info info;
	const char *end;
	int length;

	if (!dladdr(&vb_state, &info) || !info.dli_fname)
		return ENOENT;
	char *own = realpath(info.dli_fname, NULL);
	if (!own)
		return errno;
	end = strrchr(own, '/');
	length = end ? (int)(end - own) : 0;
	length = snprintf(path, size, "%.*s/%s", length, own, library);
	free(own);
	return length < (int)size ? 0 : ENAMETOOLONG;
}

static void *wait_for_unlock(void *mutex)
{
	pthread_mutex_lock(mutex);
	pthread_mutex_unlock(mutex);
	return NULL;
}

// can_start_threads starts as many threads at a time as the Go runtime does to begin with.
static int can_start_threads(void)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	pthread_t threads[8];
	int error = 0, count = 0, wanted = sizeof threads / sizeof *threads;

	pthread_mutex_lock(&mutex);
	while (count < wanted && !(error = pthread_create(&threads[count], NULL, wait_for_unlock, &mutex)))
		count++;
	pthread_mutex_unlock(&mutex);
	while (count)
		pthread_join(threads[--count], NULL);
	return error;
}

static int can_open_files(void)
{
	int fds[8], error = 0, count = 0, wanted = sizeof fds / sizeof *fds;

	while (count < wanted && (fds[count] = eventfd(0, EFD_CLOEXEC)) >= 0)
		count++;
	if (count < wanted)
		error = errno;
	while (count)
		close(fds[--count]);
	return error;
}

// check_limits checks what the Go runtime needs, since it ends the process where something is
// missing. It is called once: what is missing then is missing for the life of the process. It returns an errno.
static int check_limits(void)
{
	const size_t space = (size_t)2 << 30; // most of it is reserved, not used
	void *reserved = (void *)syscall(SYS_mmap, NULL, space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int error;

	if (reserved == MAP_FAILED) {
		error = errno;
		fprintf(stderr, "verbena: load the devices: reserve 2 GiB of address space: %s; raise the limit (ulimit -v) and restart the program\n", strerror(error));
		return error;
	}
	syscall(SYS_munmap, reserved, space);
	error = can_open_files();
	if (error) {
		fprintf(stderr, "verbena: load the devices: open 8 files: %s; raise the limit (ulimit -n) and restart the program\n", strerror(error));
		return error;
	}
	error = can_start_threads();
	if (error)
		fprintf(stderr, "verbena: load the devices: start 8 threads: %s; raise the limit (ulimit -u or -v, or that of the container) or make stacks smaller (ulimit -s), and restart the program\n", strerror(error));
	return error;
}

static void load_go_half(void)
{
	static struct vd_callbacks callbacks = {.completion = vb_completion, .event = vb_async, .cm_event = vb_cm_event};
	char path[PATH_MAX];
	void *handle = RTLD_DEFAULT;
	const char *version;

	int error = path_of_library(path, sizeof path);
	if (error) {
		fprintf(stderr, "verbena: find %s: %s\n", library, strerror(error));
		return;
	}
	// A program can be linked with the Go half, made with -buildmode=c-archive. Otherwise it is
	// loaded, and never unloaded: Go cannot be. An archive has started before the library takes over
	// signals, so these are not shared: its handlers count as the program's.
	if (!dlsym(handle, "vd_start")) {
		handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
		if (!handle) {
			fprintf(stderr, "verbena: load the devices: %s\n", dlerror());
			return;
		}
	}
	version = dlsym(handle, "verbena_version");
	if (!version || strcmp(version, verbena_version) != 0) {
		fprintf(stderr, "verbena: %s has version %s, libverbena.so %s: install both from one build\n", path, version ? version : "unknown", verbena_version);
		return;
	}
#define F(result, name, parameters) \
	vb.name = (result (*) parameters)dlsym(handle, "vd_" #name); \
	if (!vb.name) { \
		fprintf(stderr, "verbena: %s lacks the function vd_" #name "\n", path); \
		return; \
	}
	VD_FUNCTIONS(F)
#undef F
	vb_thread_enters();
	vb.start(&callbacks);
	atexit(at_exit);
	vb_state = VB_READY;
}

static void load(void)
{
	sigset_t mask;

	vb_state = VB_FAILED;
	block_signals(&mask);
	int error = check_limits();
	if (error) {
		load_error = error;
	} else {
		vb_signals_load();
		load_go_half();
		vb_signals_loaded(vb_state == VB_READY);
	}
	if (vb_state == VB_READY)
		vb_unblock_faults(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
}

int vb_load(void)
{
	pthread_once(&once, load);
	return vb_ready();
}

int vb_refused(void)
{
	static _Atomic bool reported;

	if (vb_state != VB_FORKED)
		return load_error; // load has reported the reason
	if (!atomic_exchange(&reported, true))
		fprintf(stderr, "verbena: process %d was forked after its parent had used the verbs; it cannot use them itself: fork first, or execute a program\n", (int)getpid());
	return EPERM;
}

void *vb_fail(int error)
{
	errno = error;
	return NULL;
}
