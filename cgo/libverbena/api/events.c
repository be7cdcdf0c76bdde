// Queues of events with file descriptors.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "verbena.h"

int vb_events_init(struct vb_events *events)
{
	events->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	if (events->fd < 0)
		return errno;
	pthread_mutex_init(&events->lock, NULL);
	events->first = NULL;
	events->last = &events->first;
	return 0;
}

void vb_events_close(struct vb_events *events)
{
	struct vb_event *event;

	while ((event = events->first)) {
		events->first = event->next;
		free(event);
	}
	close(events->fd);
	pthread_mutex_destroy(&events->lock);
}

// The reads and writes below cannot block or fail: the count is that of the events.

static void count_up(struct vb_events *events)
{
	uint64_t one = 1;

	if (write(events->fd, &one, sizeof one) < 0)
		abort();
}

static void count_down(struct vb_events *events)
{
	uint64_t one;

	if (read(events->fd, &one, sizeof one) < 0)
		abort();
}

void vb_events_add(struct vb_events *events, struct vb_event *event)
{
	event->next = NULL;
	pthread_mutex_lock(&events->lock);
	*events->last = event;
	events->last = &event->next;
	count_up(events);
	pthread_mutex_unlock(&events->lock);
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
	for (;;) {
		struct pollfd wait = {.fd = events->fd, .events = POLLIN};
		struct vb_event *event;

		pthread_mutex_lock(&events->lock);
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
		if (fcntl(events->fd, F_GETFL) & O_NONBLOCK)
			return vb_fail(EAGAIN);
		if (poll(&wait, 1, -1) < 0)
			return NULL;
	}
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
