// Signal handlers. A handler that is installed after the Go half was loaded must run on an alternate
// stack: it may interrupt a verb, whose goroutine has a small stack of its own (os/signal). The Go
// runtime sees to the handlers that were there before.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>

#include "verbena.h"

VB_EXPORT int sigaction(int number, const struct sigaction *action, struct sigaction *before)
{
	static _Atomic(int (*)(int, const struct sigaction *, struct sigaction *)) next;
	struct sigaction changed;

	if (!next)
		next = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
	if (action && vb_state == VB_READY && action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN) {
		changed = *action;
		changed.sa_flags |= SA_ONSTACK;
		action = &changed;
	}
	return next(number, action, before);
}

// signal has the semantics of signal(2) in the C library: system calls are restarted, and the handler
// stays.
VB_EXPORT sighandler_t signal(int number, sighandler_t handler)
{
	struct sigaction before, action = {.sa_handler = handler, .sa_flags = SA_RESTART};

	sigemptyset(&action.sa_mask);
	sigaddset(&action.sa_mask, number);
	return sigaction(number, &action, &before) ? SIG_ERR : before.sa_handler;
}
