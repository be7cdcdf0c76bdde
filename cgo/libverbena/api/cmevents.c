// Event channels and events of librdmacm.

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "cm.h"

struct cm_event {
	struct vb_event node;
	struct rdma_cm_event event;
	struct vb_cm_id *id;   // that counts it: for a request the listener
	struct vb_cm_id *child; // of a request, until it is read
	struct vb_join *join;
	uint8_t private_data[];
};

// ids are all identifiers. The lock guards them and their channels. It is taken under locks of
// devices, so it is not held in calls of the Go half.
static struct vb_cm_id *ids;
static pthread_mutex_t ids_lock = PTHREAD_MUTEX_INITIALIZER;

static void attach(struct vb_cm_id *id, struct vb_cm_channel *channel)
{
	id->channel = channel;
	id->base.channel = &channel->base;
	id->next = ids;
	id->at = &ids;
	if (ids)
		ids->at = &id->next;
	ids = id;
}

void vb_cm_attach(struct vb_cm_id *id, struct vb_cm_channel *channel)
{
	pthread_mutex_lock(&ids_lock);
	attach(id, channel);
	pthread_mutex_unlock(&ids_lock);
}

VB_EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct vb_cm_channel *channel = calloc(1, sizeof *channel);
	int error = channel ? vb_load() : ENOMEM;

	if (!error)
		error = vb_events_init(&channel->events);
	if (error) {
		free(channel);
		return vb_fail(error);
	}
	channel->base.fd = channel->events.fd;
	return &channel->base;
}

static void destroy(struct vb_cm_id *id);

// discard frees events that will not be read, with the identifiers of requests.
static void discard(struct vb_event *list)
{
	while (list) {
		struct cm_event *event = vb_container(list, struct cm_event, node);

		list = list->next;
		if (event->child)
			destroy(event->child);
		free(event);
	}
}

static struct vb_cm_id *find_on(struct vb_cm_channel *channel)
{
	for (struct vb_cm_id *id = ids; id; id = id->next)
		if (id->channel == channel)
			return id;
	return NULL;
}

// free_channel frees a channel, or leaves it to threads that wait for an event of it.
static void free_channel(struct vb_cm_channel *channel)
{
	if (!channel || channel->readers)
		return;
	vb_events_close(&channel->events);
	free(channel);
}

// The identifiers on the channel end with it. The program has still to destroy them. A thread that
// waits for an event, as rping's does at its end, waits on. So does one that comes a little late:
// the channel destroyed last stays, without events.
VB_EXPORT void rdma_destroy_event_channel(struct rdma_event_channel *given)
{
	static struct vb_cm_channel *destroyed;
	struct vb_cm_channel *channel = vb_container(given, struct vb_cm_channel, base), *previous;
	struct vb_cm_id *id;

	pthread_mutex_lock(&ids_lock);
	while ((id = find_on(channel))) {
		uint32_t handle = id->handle;
		struct vb_event *pending = vb_events_detach(&channel->events, id);

		id->channel = NULL;
		id->handle = 0;
		pthread_mutex_unlock(&ids_lock);
		if (handle && vb_state == VB_READY && !vb_ready()) // without the message in a forked child
			vb.cm_destroy(handle);
		discard(pending);
		pthread_mutex_lock(&ids_lock);
	}
	vb_events_close_fd(&channel->events); // before another thread can free the channel
	previous = destroyed;
	destroyed = channel;
	pthread_mutex_unlock(&ids_lock);
	free_channel(previous);
}

static void destroy(struct vb_cm_id *id)
{
	struct vb_event *pending = NULL;
	struct vb_cm_channel *channel;

	if (id->handle)
		vb.cm_destroy(id->handle);
	pthread_mutex_lock(&ids_lock);
	channel = id->channel;
	if (channel)
		pending = vb_events_detach(&channel->events, id);
	if (id->at) {
		*id->at = id->next;
		if (id->next)
			id->next->at = id->at;
	}
	pthread_mutex_unlock(&ids_lock);
	discard(pending);
	if (id->base.event)
		rdma_ack_cm_event(id->base.event);
	vb_events_await(&id->mutex, &id->cond, &id->acknowledged, &id->taken);
	if (id->synchronous && channel)
		rdma_destroy_event_channel(&channel->base);
	while (id->joins) {
		struct vb_join *join = id->joins;

		id->joins = join->next;
		free(join);
	}
	pthread_mutex_destroy(&id->mutex);
	pthread_cond_destroy(&id->cond);
	free(id->qp_init);
	free(id->connect_data);
	free(id);
}

VB_EXPORT int rdma_destroy_id(struct rdma_cm_id *id)
{
	int error = vb_ready();

	if (error)
		return vb_result(error);
	destroy(vb_cm_id(id));
	return 0;
}

static bool is_request_of(struct vb_event *node, const void *id)
{
	return vb_container(node, struct cm_event, node)->child == id;
}

// withdraw frees the identifier of a request that has ended, with its events, if the program has not
// read the request. Otherwise a peer could fill memory with requests that it takes back.
static bool withdraw(struct vb_cm_id *id)
{
	struct vb_event *request = NULL;

	pthread_mutex_lock(&ids_lock);
	if (id->channel)
		request = vb_events_withdraw(&id->channel->events, is_request_of, id);
	if (request)
		id->handle = 0; // which the Go half closes
	pthread_mutex_unlock(&ids_lock);
	if (request)
		discard(request);
	return request;
}

void *vb_cm_event(const struct vd_cm_event *from)
{
	struct vb_cm_id *id = from->id, *child = NULL;
	struct cm_event *event;
	const void *private_data;

	if (from->request && from->type != RDMA_CM_EVENT_CONNECT_REQUEST)
		return withdraw(id) ? id : NULL; // the program's accept fails
	event = calloc(1, sizeof *event + from->private_data_len);
	if (!event)
		return NULL;
	private_data = from->private_data_len ? event->private_data : NULL;
	if (from->type == RDMA_CM_EVENT_CONNECT_REQUEST) {
		child = vb_cm_new(id->base.context, id->base.ps, id->base.qp_type);
		if (!child) {
			free(event);
			return NULL;
		}
		child->handle = from->request;
		child->responder_resources = from->conn.responder_resources;
		child->initiator_depth = from->conn.initiator_depth;
		event->event.listen_id = &id->base;
	}
	event->id = id;
	event->node.object = id;
	event->child = child;
	event->join = from->join;
	event->event.id = child ? &child->base : &id->base;
	event->event.event = from->type;
	event->event.status = from->status;
	memcpy(event->private_data, from->private_data, from->private_data_len);
	if (from->join || id->base.qp_type == IBV_QPT_UD) {
		event->event.param.ud = from->ud;
		event->event.param.ud.private_data = from->join ? event->join->context : private_data;
		event->event.param.ud.private_data_len = from->private_data_len;
	} else {
		event->event.param.conn = from->conn;
		event->event.param.conn.private_data = private_data;
		event->event.param.conn.private_data_len = from->private_data_len;
	}
	pthread_mutex_lock(&ids_lock);
	if (id->channel) {
		if (child)
			attach(child, id->channel);
		vb_events_add(&id->channel->events, &event->node);
		pthread_mutex_unlock(&ids_lock);
		return child;
	}
	pthread_mutex_unlock(&ids_lock);
	free(event);
	free(child);
	return NULL;
}

static unsigned int *event_counter(struct vb_event *node)
{
	struct cm_event *event = vb_container(node, struct cm_event, node);

	if (event->join)
		event->join->taken++;
	return &event->id->taken;
}

// migrate moves the events of an identifier to another channel, with those of requests that are
// among them. The lock is held.
static void migrate(struct vb_cm_id *id, struct vb_cm_channel *to)
{
	struct vb_event *pending = vb_events_detach(&id->channel->events, id);

	id->channel = to;
	id->base.channel = &to->base;
	while (pending) {
		struct cm_event *event = vb_container(pending, struct cm_event, node);

		pending = pending->next;
		vb_events_add(&to->events, &event->node);
		if (event->child)
			migrate(event->child, to);
	}
}

VB_EXPORT int rdma_migrate_id(struct rdma_cm_id *given, struct rdma_event_channel *channel)
{
	struct vb_cm_id *id = vb_cm_id(given);
	bool was_synchronous = id->synchronous;
	struct rdma_event_channel *to = channel;
	struct vb_cm_channel *from;
	int error = vb_ready();

	if (!error && (was_synchronous && !channel || !id->channel))
		error = EINVAL;
	if (error)
		return vb_result(error);
	if (!to && !(to = rdma_create_event_channel()))
		return -1;
	pthread_mutex_lock(&ids_lock);
	from = id->channel;
	migrate(id, vb_container(to, struct vb_cm_channel, base));
	pthread_mutex_unlock(&ids_lock);
	id->synchronous = !channel;
	if (was_synchronous && given->event) {
		rdma_ack_cm_event(given->event);
		given->event = NULL;
	}
	vb_events_await(&id->mutex, &id->cond, &id->acknowledged, &id->taken);
	if (was_synchronous)
		rdma_destroy_event_channel(&from->base);
	return 0;
}

void vb_cm_forget_join(struct vb_join *join)
{
	struct vb_cm_id *id = join->id;
	struct vb_event *pending = NULL;

	pthread_mutex_lock(&ids_lock);
	if (id->channel)
		pending = vb_events_detach(&id->channel->events, id);
	while (pending) {
		struct cm_event *event = vb_container(pending, struct cm_event, node);

		pending = pending->next;
		if (event->join == join)
			free(event);
		else
			vb_events_add(&id->channel->events, &event->node);
	}
	pthread_mutex_unlock(&ids_lock);
	vb_events_await(&id->mutex, &id->cond, &join->acknowledged, &join->taken);
}

VB_EXPORT int rdma_ack_cm_event(struct rdma_cm_event *given)
{
	struct cm_event *event;
	struct vb_cm_id *id;

	if (!given)
		return vb_result(EINVAL);
	event = vb_container(given, struct cm_event, event);
	id = event->id;
	pthread_mutex_lock(&id->mutex);
	id->acknowledged++;
	if (event->join)
		event->join->acknowledged++;
	pthread_cond_broadcast(&id->cond);
	pthread_mutex_unlock(&id->mutex);
	free(event);
	return 0;
}

// receive_request prepares the identifier of a request. It returns an errno.
static int receive_request(struct cm_event *event)
{
	struct vb_cm_id *child = event->child;
	int error = 0;

	event->child = NULL; // the program's from now on
	if (event->id->synchronous && rdma_migrate_id(&child->base, NULL))
		error = errno;
	if (!error)
		error = vb_cm_refresh(child);
	if (!error)
		vb_cm_set_route(child);
	else
		destroy(child);
	return error;
}

// receive_response connects the queue pair. It returns an errno.
static int receive_response(struct vb_cm_id *id)
{
	int error = vb_cm_modify_qp(id, IBV_QPS_INIT, RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH);

	if (!error)
		error = vb_cm_modify_qp(id, IBV_QPS_RTR, RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH);
	if (!error)
		error = vb_cm_modify_qp(id, IBV_QPS_RTS, RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH);
	if (!error)
		error = vb_cm_establish(id);
	if (error)
		vb_cm_modify_qp(id, IBV_QPS_ERR, 0, 0);
	return error;
}

// receive does what an event means for the identifier. It returns false for an event that the
// program does not get.
static bool receive(struct cm_event *event)
{
	struct rdma_cm_event *e = &event->event;
	int error = 0;

	switch (e->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		error = vb_cm_refresh(event->id);
		if (error)
			e->event = RDMA_CM_EVENT_ADDR_ERROR;
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		vb_cm_set_route(event->id);
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		if (receive_request(event)) {
			rdma_ack_cm_event(e);
			return false;
		}
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		if (!event->id->base.qp)
			break;
		error = receive_response(event->id);
		e->event = error ? RDMA_CM_EVENT_CONNECT_ERROR : RDMA_CM_EVENT_ESTABLISHED;
		break;
	case RDMA_CM_EVENT_REJECTED:
		vb_cm_modify_qp(event->id, IBV_QPS_ERR, 0, 0);
		break;
	case RDMA_CM_EVENT_MULTICAST_JOIN:
		error = vb_cm_joined(event->join, &e->param.ud);
		if (error)
			e->event = RDMA_CM_EVENT_MULTICAST_ERROR;
		break;
	default:
		break;
	}
	if (error)
		e->status = -error;
	return true;
}

VB_EXPORT int rdma_get_cm_event(struct rdma_event_channel *given, struct rdma_cm_event **to)
{
	struct vb_cm_channel *channel = vb_container(given, struct vb_cm_channel, base);
	int error = vb_ready();

	if (!error && (!given || !to))
		error = EINVAL;
	if (error)
		return vb_result(error);
	for (;;) {
		struct vb_event *node;
		struct cm_event *event;

		channel->readers++;
		node = vb_events_take(&channel->events, event_counter);
		channel->readers--;
		if (!node)
			return -1;
		event = vb_container(node, struct cm_event, node);
		if (receive(event)) {
			*to = &event->event;
			return 0;
		}
	}
}

int vb_cm_complete(struct vb_cm_id *id, bool must_come)
{
	struct pollfd now = {.events = POLLIN};
	struct rdma_cm_event *event;

	if (id->base.event) {
		rdma_ack_cm_event(id->base.event);
		id->base.event = NULL;
	}
	now.fd = id->base.channel->fd;
	if (!must_come && poll(&now, 1, 0) <= 0)
		return 0;
	if (rdma_get_cm_event(id->base.channel, &event))
		return -1;
	id->base.event = event;
	if (event->status < 0)
		return vb_result(-event->status);
	return vb_result(event->status ? ECONNREFUSED : 0); // the peer's reason
}

VB_EXPORT const char *rdma_event_str(enum rdma_cm_event_type type)
{
#define NAME(event) [event] = #event
	static const char *const names[] = {
		NAME(RDMA_CM_EVENT_ADDR_RESOLVED), NAME(RDMA_CM_EVENT_ADDR_ERROR),
		NAME(RDMA_CM_EVENT_ROUTE_RESOLVED), NAME(RDMA_CM_EVENT_ROUTE_ERROR),
		NAME(RDMA_CM_EVENT_CONNECT_REQUEST), NAME(RDMA_CM_EVENT_CONNECT_RESPONSE),
		NAME(RDMA_CM_EVENT_CONNECT_ERROR), NAME(RDMA_CM_EVENT_UNREACHABLE),
		NAME(RDMA_CM_EVENT_REJECTED), NAME(RDMA_CM_EVENT_ESTABLISHED),
		NAME(RDMA_CM_EVENT_DISCONNECTED), NAME(RDMA_CM_EVENT_DEVICE_REMOVAL),
		NAME(RDMA_CM_EVENT_MULTICAST_JOIN), NAME(RDMA_CM_EVENT_MULTICAST_ERROR),
		NAME(RDMA_CM_EVENT_ADDR_CHANGE), NAME(RDMA_CM_EVENT_TIMEWAIT_EXIT),
	};
#undef NAME

	return (size_t)type < sizeof names / sizeof *names ? names[type] : "UNKNOWN EVENT";
}
