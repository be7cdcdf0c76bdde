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

// taken are the signals for which the Go runtime in a library installs handlers, and SIGPROF, by
// which threads get their mask: see set_mask_at_unblock. The runtime does not use SIGURG: the Go half is
// built (scripts/library.sh) not to preempt its threads by signals, which would interrupt system
// calls of the program.
static const int taken[] = {SIGSEGV, SIGBUS, SIGFPE, SIGPIPE, SIGURG, SIGPROF};

#define TAKEN (sizeof taken / sizeof *taken)
#define OF_GO 4 // the first ones

// From when the library takes over, these are the program's actions for taken signals. Once the Go
// half is loaded, kernel_handler is installed for them. The lock guards all three, and is held with
// all signals blocked.
static struct sigaction actions[TAKEN];
static bool taking_over, installed;
static atomic_flag lock = ATOMIC_FLAG_INIT;
static _Atomic pid_t owner; // of actions: a child of vfork has its parent's memory
static void (*go_handlers[OF_GO])(int, siginfo_t *, void *);

// all_but_faults is the mask of the Go runtime's own threads.
static sigset_t all_but_faults;

// onstack_added are the handlers of the program that have SA_ONSTACK without having asked for it. The
// lock guards them.
static uint64_t onstack_added;

// Static TLS, since a handler reads them.
#define THREAD_LOCAL static __thread __attribute__((tls_model("initial-exec")))
THREAD_LOCAL bool loading;                // this thread loads the Go half
THREAD_LOCAL const sigset_t *mask_to_set; // see set_mask_at_unblock

__attribute__((tls_model("initial-exec"))) __thread bool vb_thread_known;

typedef int set_action(int number, const struct sigaction *action, struct sigaction *before);

static set_action *c_library(void)
{
	static _Atomic(set_action *) next;

	if (!next)
		next = (set_action *)dlsym(RTLD_NEXT, "sigaction");
	return next;
}

static int next_sigaction(int number, const struct sigaction *action, struct sigaction *before)
{
	return c_library()(number, action, before);
}

static void lock_actions(sigset_t *before)
{
	sigset_t all;

	c_library(); // dlsym locks, too: call it before
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
	for (size_t i = 0; i < TAKEN; i++)
		if (taken[i] == number)
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

// kernel_handler is the handler that the kernel knows. The Go runtime's handler comes before the program's
// for faults, which may be those of memory that the device guards, and for broken pipes: it passes
// on what did not happen in Go.
static void kernel_handler(int number, siginfo_t *info, void *context)
{
	int i = index_of(number);

	if (number == SIGPROF && mask_to_set) {
		memcpy(&((ucontext_t *)context)->uc_sigmask, mask_to_set, SIGSET_BYTES);
		mask_to_set = NULL;
	} else if (i < OF_GO && go_handlers[i] && (number == SIGPIPE || info->si_code > 0)) {
		go_handlers[i](number, info, context);
	} else {
		program_handles(number, info, context);
	}
}

// install gives the kernel the action for a taken signal. Programs that this one executes inherit
// that a signal is ignored.
static int install(size_t i)
{
	struct sigaction action = {.sa_sigaction = kernel_handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};

	if (has_handler(&actions[i]))
		action.sa_flags &= ~SA_RESTART | actions[i].sa_flags;
	if (actions[i].sa_handler == SIG_IGN && !is_fault(taken[i]) && taken[i] != SIGPROF)
		action = actions[i];
	sigfillset(&action.sa_mask);
	return next_sigaction(taken[i], &action, NULL);
}

void vb_signals_load(void)
{
	struct sigaction action = {.sa_sigaction = program_handles, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
	sigset_t mask;

	sigfillset(&all_but_faults);
	vb_unblock_faults(&all_but_faults);
	lock_actions(&mask);
	for (int number = 1; number <= SIGRTMAX; number++) {
		struct sigaction a;
		int i = index_of(number);

		if (next_sigaction(number, NULL, &a))
			continue;
		if (i >= 0)
			actions[i] = a;
		else if (has_handler(&a) && !(a.sa_flags & SA_ONSTACK))
			onstack_added |= UINT64_C(1) << (number - 1); // the Go runtime adds it
	}
	owner = getpid();
	loading = taking_over = true;
	// The Go runtime passes signals on to the handlers that it finds.
	sigfillset(&action.sa_mask);
	for (size_t i = 0; i < OF_GO; i++)
		next_sigaction(taken[i], &action, NULL);
	install(index_of(SIGPROF));
	unlock_actions(&mask);
}

void vb_signals_loaded(bool ready)
{
	struct sigaction action;
	sigset_t mask;

	lock_actions(&mask);
	for (size_t i = 0; i < TAKEN; i++) {
		if (!ready) {
			next_sigaction(taken[i], &actions[i], NULL);
			continue;
		}
		if (i < OF_GO && !next_sigaction(taken[i], NULL, &action) && action.sa_sigaction != program_handles)
			go_handlers[i] = action.sa_sigaction;
		install(i);
	}
	installed = taking_over = ready;
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
	for (size_t i = 0; i < TAKEN; i++)
		if (is_fault(taken[i]))
			sigdelset(mask, taken[i]);
}

// set_mask_at_unblock is called with all signals blocked, right before the Go runtime first sees the
// thread. The runtime then unblocks signals that it may need, also SIGCHLD, SIGURG and SIGRTMIN. At that
// moment SIGPROF arrives, and its handler sets the mask that the thread shall have. If the program has
// given SIGPROF to the kernel itself, as gprof does, the runtime's mask stays.
static void set_mask_at_unblock(const sigset_t *mask)
{
	struct sigaction action;

	vb_thread_known = true;
	if (next_sigaction(SIGPROF, NULL, &action) || action.sa_sigaction != kernel_handler)
		return;
	mask_to_set = mask;
	pthread_kill(pthread_self(), SIGPROF);
}

void vb_thread_enters(void)
{
	sigset_t all, mask;

	sigfillset(&all);
	// The thread has this mask, which the Go runtime restores, when it ends.
	pthread_sigmask(SIG_SETMASK, &all, &mask);
	vb_unblock_faults(&mask);
	set_mask_at_unblock(&mask);
	vb.enter();
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	mask_to_set = NULL;
}

// verbena_thread_starts is called in each new thread of the Go runtime.
VB_EXPORT void verbena_thread_starts(void)
{
	set_mask_at_unblock(&all_but_faults);
}

// on_alternate_stack sets the action for a signal that is not taken. A handler that is installed
// after the Go half was loaded must run on an alternate stack: it may interrupt a verb, whose
// goroutine has a small stack of its own (os/signal). The lock is held.
static int on_alternate_stack(int number, const struct sigaction *action, struct sigaction *before)
{
	uint64_t bit = number > 0 && number <= 64 ? UINT64_C(1) << (number - 1) : 0;
	bool was_added = onstack_added & bit, added = false;
	struct sigaction changed;

	if (action && taking_over && has_handler(action) && !(action->sa_flags & SA_ONSTACK)) {
		changed = *action;
		changed.sa_flags |= SA_ONSTACK;
		action = &changed;
		added = true;
	}
	if (next_sigaction(number, action, before))
		return -1;
	if (was_added)
		before->sa_flags &= ~SA_ONSTACK;
	if (action && getpid() == owner)
		onstack_added = added ? onstack_added | bit : onstack_added & ~bit;
	return 0;
}

VB_EXPORT int sigaction(int number, const struct sigaction *action, struct sigaction *before)
{
	struct sigaction given, old;
	int i = index_of(number), result = 0;
	sigset_t mask;

	if (loading)
		return next_sigaction(number, action, before);
	if (action)
		given = *action;
	lock_actions(&mask);
	if (!taking_over || i < 0) {
		result = on_alternate_stack(number, action ? &given : NULL, &old);
	} else {
		old = actions[i];
		if (action && getpid() != owner) {
			result = next_sigaction(number, &given, NULL);
		} else if (action) {
			actions[i] = given;
			result = installed ? install(i) : 0;
		}
	}
	unlock_actions(&mask);
	if (before && !result)
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
