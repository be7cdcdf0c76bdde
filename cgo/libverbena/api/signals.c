// Signals. The program and the Go runtime share the process's handlers, and threads of the runtime
// must not take signals that the program blocks in all of its own.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "verbena.h"

// The kernel's set of signals is shorter than the C library's.
#define SIGSET_BYTES 8

// shared are the signals for which the Go runtime in a library installs handlers, and SIGPROF, by
// which threads get their mask: see mask_pending. The runtime does not use SIGURG: the Go half is
// built (scripts/library.sh) not to preempt its threads by signals, which would interrupt system
// calls of the program.
static const int shared[] = {SIGSEGV, SIGBUS, SIGFPE, SIGPIPE, SIGURG, SIGPROF};

#define SHARED (sizeof shared / sizeof *shared)
#define OF_GO 4 // the first ones

// The kernel has the handler first for shared signals, and these are the program's actions. The lock
// is taken with all signals blocked.
static struct sigaction actions[SHARED];
static atomic_flag lock = ATOMIC_FLAG_INIT;
static _Atomic bool sharing;
static _Atomic pid_t owner; // of actions: a child of vfork has its parent's memory
static void (*go_handlers[OF_GO])(int, siginfo_t *, void *);

// all_but_faults is the mask of the Go runtime's own threads.
static sigset_t all_but_faults;

// on_stack are the handlers of the program that have SA_ONSTACK without having asked for it.
static _Atomic uint64_t on_stack;

// Static TLS, since a handler reads them.
#define THREAD_LOCAL static __thread __attribute__((tls_model("initial-exec")))
THREAD_LOCAL bool loading;                  // this thread loads the Go half
THREAD_LOCAL const sigset_t *pending_mask; // see mask_pending

__attribute__((tls_model("initial-exec"))) __thread bool vb_thread_known;

static int next_sigaction(int number, const struct sigaction *action, struct sigaction *before)
{
	static _Atomic(int (*)(int, const struct sigaction *, struct sigaction *)) next;

	if (!next)
		next = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
	return next(number, action, before);
}

static void lock_actions(sigset_t *before)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, before);
	while (atomic_flag_test_and_set(&lock))
		sched_yield();
}

static void unlock_actions(const sigset_t *before)
{
	atomic_flag_clear(&lock);
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

static int index_of(int number)
{
	for (size_t i = 0; i < SHARED; i++)
		if (shared[i] == number)
			return i;
	return -1;
}

static bool is_fault(int number)
{
	return number == SIGSEGV || number == SIGBUS || number == SIGFPE;
}

static bool has_handler(const struct sigaction *action)
{
	return action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN;
}

// program_handles does what the program has set for a signal, as the kernel would.
static void program_handles(int number, siginfo_t *info, void *context)
{
	// Faults happen again when the handler returns. Other signals were sent, or come from a timer.
	bool again = is_fault(number) && info->si_code > 0;
	struct sigaction action, none = {.sa_handler = SIG_DFL};
	sigset_t mask, interrupted;

	lock_actions(&mask);
	action = actions[index_of(number)];
	if (has_handler(&action) && action.sa_flags & SA_RESETHAND)
		actions[index_of(number)].sa_handler = SIG_DFL;
	unlock_actions(&mask);

	if (has_handler(&action)) {
		sigemptyset(&interrupted);
		memcpy(&interrupted, &((ucontext_t *)context)->uc_sigmask, SIGSET_BYTES);
		sigorset(&mask, &interrupted, &action.sa_mask);
		if (!(action.sa_flags & SA_NODEFER))
			sigaddset(&mask, number);
		pthread_sigmask(SIG_SETMASK, &mask, NULL);
		if (action.sa_flags & SA_SIGINFO)
			action.sa_sigaction(number, info, context);
		else
			action.sa_handler(number);
		return;
	}
	if (!again && (action.sa_handler == SIG_IGN || number == SIGURG))
		return;
	next_sigaction(number, &none, NULL);
	if (!again)
		raise(number); // it is blocked until the handler returns
}

// first is the handler that the kernel knows. The Go runtime's handler comes before the program's
// for faults, which may be those of memory that the device guards, and for broken pipes: it passes
// on what did not happen in Go.
static void first(int number, siginfo_t *info, void *context)
{
	int i = index_of(number);

	if (number == SIGPROF && pending_mask) {
		memcpy(&((ucontext_t *)context)->uc_sigmask, pending_mask, SIGSET_BYTES);
		pending_mask = NULL;
	} else if (i < OF_GO && go_handlers[i] && (number == SIGPIPE || info->si_code > 0)) {
		go_handlers[i](number, info, context);
	} else {
		program_handles(number, info, context);
	}
}

// install gives the kernel the action for a shared signal. Programs that this one executes inherit
// that a signal is ignored.
static int install(size_t i)
{
	struct sigaction action = {.sa_sigaction = first, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};

	if (has_handler(&actions[i]))
		action.sa_flags &= ~SA_RESTART | actions[i].sa_flags;
	if (actions[i].sa_handler == SIG_IGN && !is_fault(shared[i]) && shared[i] != SIGPROF)
		action = actions[i];
	sigfillset(&action.sa_mask);
	return next_sigaction(shared[i], &action, NULL);
}

void vb_signals_load(void)
{
	struct sigaction action = {.sa_sigaction = program_handles, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};

	for (int number = 1; number <= SIGRTMAX; number++) {
		struct sigaction a;
		int i = index_of(number);

		if (next_sigaction(number, NULL, &a))
			continue;
		if (i >= 0)
			actions[i] = a;
		else if (has_handler(&a) && !(a.sa_flags & SA_ONSTACK))
			on_stack |= UINT64_C(1) << (number - 1); // the Go runtime adds it
	}
	sigfillset(&all_but_faults);
	vb_unblock_faults(&all_but_faults);
	owner = getpid();
	loading = sharing = true;
	// The Go runtime passes signals on to the handlers that it finds.
	sigfillset(&action.sa_mask);
	for (size_t i = 0; i < OF_GO; i++)
		next_sigaction(shared[i], &action, NULL);
	install(index_of(SIGPROF));
}

void vb_signals_loaded(void)
{
	struct sigaction action;
	sigset_t mask;

	lock_actions(&mask);
	for (size_t i = 0; i < SHARED; i++) {
		if (i < OF_GO && !next_sigaction(shared[i], NULL, &action) && action.sa_sigaction != program_handles)
			go_handlers[i] = action.sa_sigaction;
		install(i);
	}
	loading = false;
	unlock_actions(&mask);
}

void vb_signals_forked(void)
{
	owner = getpid();
	atomic_flag_clear(&lock);
}

void vb_unblock_faults(sigset_t *mask)
{
	for (size_t i = 0; i < SHARED; i++)
		if (is_fault(shared[i]))
			sigdelset(mask, shared[i]);
}

// mask_pending prepares a thread of which the Go runtime learns next, and in which all signals are
// blocked. The runtime then unblocks signals that it may need, also SIGCHLD, SIGURG and SIGRTMIN. At
// that moment SIGPROF arrives, and its handler sets the mask that the thread shall have.
static void mask_pending(const sigset_t *mask)
{
	vb_thread_known = true;
	pending_mask = mask;
	pthread_kill(pthread_self(), SIGPROF);
}

void vb_thread_enters(void)
{
	sigset_t all, mask;

	sigfillset(&all);
	// The thread has this mask, which the Go runtime restores, when it ends.
	pthread_sigmask(SIG_SETMASK, &all, &mask);
	vb_unblock_faults(&mask);
	mask_pending(&mask);
	vb.enter();
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	pending_mask = NULL;
}

// verbena_thread_starts is called in each new thread of the Go runtime.
VB_EXPORT void verbena_thread_starts(void)
{
	mask_pending(&all_but_faults);
}

// on_alternate_stack sets the action for a signal that is not shared. A handler that is installed
// after the Go half was loaded must run on an alternate stack: it may interrupt a verb, whose
// goroutine has a small stack of its own (os/signal).
static int on_alternate_stack(int number, const struct sigaction *action, struct sigaction *before)
{
	uint64_t bit = number > 0 && number <= 64 ? UINT64_C(1) << (number - 1) : 0;
	bool was_added = on_stack & bit, added = false;
	struct sigaction changed;

	if (action && vb_state == VB_READY && has_handler(action) && !(action->sa_flags & SA_ONSTACK)) {
		changed = *action;
		changed.sa_flags |= SA_ONSTACK;
		action = &changed;
		added = true;
	}
	if (next_sigaction(number, action, before))
		return -1;
	if (before && was_added)
		before->sa_flags &= ~SA_ONSTACK;
	if (action && added)
		on_stack |= bit;
	else if (action)
		on_stack &= ~bit;
	return 0;
}

VB_EXPORT int sigaction(int number, const struct sigaction *action, struct sigaction *before)
{
	bool ours = getpid() == owner;
	struct sigaction given, old;
	int i = index_of(number), result = 0;
	sigset_t mask;

	if (loading)
		return next_sigaction(number, action, before);
	if (!sharing || i < 0)
		return on_alternate_stack(number, action, before);
	if (action)
		given = *action;
	lock_actions(&mask);
	old = actions[i];
	if (action && ours) {
		actions[i] = given;
		result = install(i);
	}
	unlock_actions(&mask);
	if (action && !ours)
		result = next_sigaction(number, &given, NULL);
	if (before)
		*before = old;
	return result;
}

static sighandler_t set_handler(int number, sighandler_t handler, int flags)
{
	struct sigaction before, action = {.sa_handler = handler, .sa_flags = flags};

	sigemptyset(&action.sa_mask);
	if (!(flags & SA_NODEFER))
		sigaddset(&action.sa_mask, number);
	return sigaction(number, &action, &before) ? SIG_ERR : before.sa_handler;
}

// signal has the semantics of signal(2) in the C library: system calls are restarted, and the handler
// stays.
VB_EXPORT sighandler_t signal(int number, sighandler_t handler)
{
	return set_handler(number, handler, SA_RESTART);
}

// Programs that ask for the POSIX standard alone get this one in place of signal.
VB_EXPORT sighandler_t __sysv_signal(int number, sighandler_t handler)
{
	return set_handler(number, handler, SA_RESETHAND | SA_NODEFER);
}
