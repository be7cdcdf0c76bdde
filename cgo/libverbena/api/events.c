// Queues of events with file descriptors.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "verbena.h"

int vb_events_init(struct vb_events *events)
{
	events->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	if (events->fd < 0)
		return errno;
	pthread_mutex_init(&events->lock, NULL);
	events->added = events->context = 0;
	events->waiting = 0;
	events->first = NULL;
	events->last = &events->first;
	return 0;
}

void vb_events_close_fd(struct vb_events *events)
{
	int fd = events->fd;

	events->fd = -1;
	if (fd >= 0)
		close(fd);
}

void vb_events_close(struct vb_events *events)
{
	struct vb_event *event;

	while ((event = events->first)) {
		events->first = event->next;
		free(event);
	}
	vb_events_close_fd(events);
	pthread_mutex_destroy(&events->lock);
}

// The reads and writes below do not block: the count is that of the events. They are no
// cancellation points (pthreads(7)), since locks are held. They fail only if the program has closed
// the descriptor, or in a child of fork, which must not take the parent's counts.

static void count_up(struct vb_events *events)
{
	uint64_t one = 1;

	if (vb_state != VB_FORKED)
		(void)!syscall(SYS_write, events->fd, &one, sizeof one);
}

static void count_down(struct vb_events *events)
{
	uint64_t one;

	if (vb_state != VB_FORKED)
		(void)!syscall(SYS_read, events->fd, &one, sizeof one);
}

// wait_for_event waits until added differs from seen. Like read(2), and unlike poll(2), it goes on
// after a signal whose handler has SA_RESTART, and is a cancellation point. It returns -1 with
// errno set otherwise.
static int wait_for_event(struct vb_events *events, uint32_t seen)
{
	int type, result;

	atomic_fetch_add(&events->waiting, 1); // for ever, if the thread is cancelled
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
	result = syscall(SYS_futex, &events->added, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
	pthread_setcanceltype(type, NULL);
	atomic_fetch_sub(&events->waiting, 1);
	return result < 0 && errno == EAGAIN ? 0 : result;
}

void vb_events_add(struct vb_events *events, struct vb_event *event)
{
	event->next = NULL;
	pthread_mutex_lock(&events->lock);
	*events->last = event;
	events->last = &event->next;
	count_up(events);
	__atomic_add_fetch(&events->added, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&events->lock);
	if (atomic_load(&events->waiting)) // a thread that counts itself later sees that added has changed
		syscall(SYS_futex, &events->added, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

// remove_at removes the event that *at points to. The lock is held.
static void remove_at(struct vb_events *events, struct vb_event **at)
{
	struct vb_event *event = *at;

	*at = event->next;
	if (events->last == &event->next)
		events->last = at;
	count_down(events);
}

struct vb_event *vb_events_take(struct vb_events *events, unsigned int *(*event_counter)(struct vb_event *))
{
	int error = vb_ready();

	if (error)
		return vb_fail(error);
	for (;;) {
		struct vb_event *event;
		uint32_t seen;
		int flags;

		pthread_mutex_lock(&events->lock);
		seen = events->added;
		event = events->first;
		if (event) {
			unsigned int *counter = event_counter(event);

			remove_at(events, &events->first);
			if (counter)
				++*counter;
		}
		pthread_mutex_unlock(&events->lock);
		if (event)
			return event;
		flags = fcntl(events->fd, F_GETFL);
		if (flags >= 0 && flags & O_NONBLOCK)
			return vb_fail(EAGAIN);
		if (events->context)
			vb.poll_for_event(events->context, &events->added, seen);
		if (__atomic_load_n(&events->added, __ATOMIC_ACQUIRE) != seen)
			continue;
		if (wait_for_event(events, seen) < 0)
			return NULL;
		if (events->context)
			vb.event_awaited(events->context);
	}
}

struct vb_event *vb_events_withdraw(struct vb_events *events, bool (*is)(struct vb_event *event, const void *key), const void *key)
{
	struct vb_event **at = &events->first, *event;

	pthread_mutex_lock(&events->lock);
	while (*at && !is(*at, key))
		at = &(*at)->next;
	event = *at;
	if (event && (event != events->first || event->next)) {
		remove_at(events, at);
		event->next = NULL;
	} else {
		event = NULL;
	}
	pthread_mutex_unlock(&events->lock);
	return event;
}

struct vb_event *vb_events_detach(struct vb_events *events, void *object)
{
	struct vb_event **at = &events->first, *detached = NULL, **end = &detached;

	pthread_mutex_lock(&events->lock);
	while (*at) {
		struct vb_event *event = *at;

		if (event->object == object) {
			remove_at(events, at);
			event->next = NULL;
			*end = event;
			end = &event->next;
		} else {
			at = &event->next;
		}
	}
	pthread_mutex_unlock(&events->lock);
	return detached;
}

void vb_events_drop(struct vb_events *events, void *object)
{
	struct vb_event *event = vb_events_detach(events, object);

	while (event) {
		struct vb_event *next = event->next;

		free(event);
		event = next;
	}
}

void vb_events_await(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *acknowledged, const unsigned int *read)
{
	pthread_mutex_lock(mutex);
	while (*acknowledged != *read)
		pthread_cond_wait(cond, mutex);
	pthread_mutex_unlock(mutex);
}
