//go:build linux && cgo && verbs

// Threads of the Go runtime. The linker (LDFLAGS in context.go) binds its calls of pthread_create
// to the function below.

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

// verbena_thread_starts is a function of the C half.
void verbena_thread_starts(void) __attribute__((weak));

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument);

struct start {
	void *(*run)(void *);
	void *argument;
};

static void *start(void *given)
{
	struct start s = *(struct start *)given;

	free(given);
	if (verbena_thread_starts)
		verbena_thread_starts();
	return s.run(s.argument);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument)
{
	struct start *s = malloc(sizeof *s);
	int error;

	if (!s)
		return EAGAIN;
	*s = (struct start){run, argument};
	error = __real_pthread_create(thread, attr, start, s);
	if (error)
		free(s);
	return error;
}
