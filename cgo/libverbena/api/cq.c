// Completion queues and channels.

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbena.h"

static struct vb_cq *cq_of(struct ibv_cq *cq)
{
	return vb_container(cq, struct vb_cq, base);
}

VB_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct vb_channel *channel = calloc(1, sizeof *channel);
	int error = channel ? vb_ready() : ENOMEM;

	if (!error)
		error = vb_events_init(&channel->events);
	if (error) {
		free(channel);
		return vb_fail(error);
	}
	channel->base.context = context;
	channel->base.fd = channel->events.fd;
	channel->events.context = vb_context(context)->handle;
	return &channel->base;
}

VB_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *given)
{
	struct vb_channel *channel = vb_container(given, struct vb_channel, base);

	if (__atomic_load_n(&given->refcnt, __ATOMIC_ACQUIRE))
		return EBUSY;
	vb_events_close(&channel->events);
	free(channel);
	return 0;
}

static struct vb_events *events_of(struct ibv_comp_channel *channel)
{
	return &vb_container(channel, struct vb_channel, base)->events;
}

void vb_completion(void *cq)
{
	struct vb_cq *q = cq;
	struct vb_event *event;

	if (!q->base.channel)
		return;
	event = malloc(sizeof *event);
	if (!event)
		return;
	event->object = q;
	vb_events_add(events_of(q->base.channel), event);
}

static unsigned int *completion_counter(struct vb_event *event)
{
	return &((struct vb_cq *)event->object)->completions;
}

VB_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	struct vb_event *event = vb_events_take(events_of(channel), completion_counter);

	if (!event)
		return -1;
	*cq = &((struct vb_cq *)event->object)->base;
	*cq_context = (*cq)->cq_context;
	free(event);
	return 0;
}

VB_EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += count;
	pthread_cond_broadcast(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

static struct vb_cq *create(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, uint64_t wc_flags)
{
	struct vb_cq *q = calloc(1, sizeof *q);
	pthread_mutexattr_t recursive;
	struct vd_new_object made;
	int error = q ? vb_ready() : ENOMEM;

	if (error) {
		free(q);
		return vb_fail(error);
	}
	// Recursive: a program may reset a queue pair while it reads a completion.
	pthread_mutexattr_init(&recursive);
	pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&q->lock, &recursive);
	pthread_mutexattr_destroy(&recursive);
	pthread_mutex_init(&q->base.mutex, NULL);
	pthread_cond_init(&q->base.cond, NULL);
	q->base.context = context;
	q->base.channel = channel;
	q->base.cq_context = cq_context;
	error = vb.create_cq(vb_context(context)->handle, q, cqe, wc_flags, &made);
	if (error) {
		free(q);
		return vb_fail(error);
	}
	q->base.handle = made.handle;
	q->base.cqe = made.capacity;
	if (channel)
		__atomic_add_fetch(&channel->refcnt, 1, __ATOMIC_ACQ_REL);
	return q;
}

VB_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	struct vb_cq *q;

	if (vector < 0 || vector >= context->num_comp_vectors)
		return vb_fail(EINVAL);
	q = create(context, cqe, cq_context, channel, 0);
	return q ? &q->base : NULL;
}

VB_EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct vb_cq *q = cq_of(cq);
	struct vb_events *async = &vb_context(cq->context)->async;
	int error = vb_ready();

	if (!error)
		error = vb.destroy(VD_CQ, cq->handle);
	if (error)
		return error;
	// No event comes any more. Wait until those that were read are acknowledged.
	vb_events_drop(async, q);
	if (cq->channel)
		vb_events_drop(events_of(cq->channel), q);
	vb_events_await(&cq->mutex, &cq->cond, &cq->comp_events_completed, &q->completions);
	vb_events_await(&cq->mutex, &cq->cond, &cq->async_events_completed, &q->asyncs);
	if (cq->channel)
		__atomic_sub_fetch(&cq->channel->refcnt, 1, __ATOMIC_ACQ_REL);
	pthread_mutex_destroy(&cq->mutex);
	pthread_cond_destroy(&cq->cond);
	pthread_mutex_destroy(&q->lock);
	free(q);
	return 0;
}

VB_EXPORT int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	uint32_t capacity;
	int error = vb_ready();

	if (!error)
		error = vb.resize_cq(cq->handle, cqe, &capacity);
	if (!error)
		cq->cqe = capacity;
	return error;
}

// An event comes at once for completions that are there, unless an event has come since: mlx4 and mlx5
// do that, and UCX sleeps until it comes. perftest does not expect a second event. The device
// no longer knows completions that start_poll has taken, so these raise an event at each call,
// announced before or not, solicited or not.
int vb_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	struct vb_cq *q = cq_of(cq);
	int error = vb_ready();

	if (error)
		return error;
	if (q->is_extended) {
		bool unread;

		pthread_mutex_lock(&q->lock);
		unread = q->count > q->reading;
		pthread_mutex_unlock(&q->lock);
		if (unread) {
			vb_completion(q);
			return 0;
		}
	}
	return vb.arm_cq(cq->handle, solicited_only);
}

int vb_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wcs)
{
	struct vb_cq *q = cq_of(cq);
	int taken = 0, polled;

	if (vb_ready())
		return -1;
	if (__builtin_expect(q->is_extended, 0)) {
		pthread_mutex_lock(&q->lock);
		for (; taken < n && q->count > 0; q->count--)
			wcs[taken++] = q->wcs[q->first++];
		pthread_mutex_unlock(&q->lock);
		if (taken == n)
			return taken;
	}
	polled = vb.poll_cq(cq->handle, n - taken, wcs + taken, NULL);
	if (polled < 0)
		return taken ? taken : -1;
	return taken + polled;
}

// The functions of extended completion queues. first is the completion that they read.

static struct vb_cq *extended(struct ibv_cq_ex *cq)
{
	return vb_container(cq, struct vb_cq, extended);
}

static void show(struct vb_cq *q)
{
	q->extended.status = q->wcs[q->first].status;
	q->extended.wr_id = q->wcs[q->first].wr_id;
}

// fill polls for the next completions, if all have been read. It returns ENOENT if there are
// none.
static int fill(struct vb_cq *q)
{
	if (!q->count) {
		int n = vb.poll_cq(q->base.handle, VB_POLL_BATCH, q->wcs, q->extras);

		if (n <= 0)
			return n ? -n : ENOENT;
		q->first = 0;
		q->count = n;
	}
	show(q);
	return 0;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	struct vb_cq *q = extended(cq);
	int error = vb_ready();

	if (!error && attr->comp_mask)
		error = EINVAL;
	if (error)
		return error;
	pthread_mutex_lock(&q->lock);
	error = fill(q);
	q->reading = !error;
	if (error)
		pthread_mutex_unlock(&q->lock); // end_poll is not called
	return error;
}

static void next(struct vb_cq *q)
{
	q->first++;
	q->count--;
}

static int next_poll(struct ibv_cq_ex *cq)
{
	struct vb_cq *q = extended(cq);
	int error;

	if (q->count > 1) {
		next(q);
		show(q);
		return 0;
	}
	// If there is no other, the last one stays, for end_poll.
	struct ibv_wc last = q->wcs[q->first];
	struct vd_extra extra = q->extras[q->first];

	q->count = 0;
	error = fill(q);
	if (error) {
		q->wcs[0] = last;
		q->extras[0] = extra;
		q->first = 0;
		q->count = 1;
	}
	return error;
}

static void end_poll(struct ibv_cq_ex *cq)
{
	struct vb_cq *q = extended(cq);

	next(q);
	q->reading = false;
	pthread_mutex_unlock(&q->lock);
}

void vb_discard_completions(struct ibv_cq *cq, uint32_t qp_num)
{
	struct vb_cq *q = cq_of(cq);
	int kept;

	if (!q->is_extended)
		return;
	pthread_mutex_lock(&q->lock);
	kept = q->first + q->reading; // the one that is being read stays
	for (int i = kept; i < q->first + q->count; i++)
		if (q->wcs[i].qp_num != qp_num) {
			q->wcs[kept] = q->wcs[i];
			q->extras[kept++] = q->extras[i];
		}
	q->count = kept - q->first;
	pthread_mutex_unlock(&q->lock);
}

static const struct ibv_wc *current(struct ibv_cq_ex *cq)
{
	struct vb_cq *q = extended(cq);

	return &q->wcs[q->first];
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq) { return current(cq)->opcode; }
static uint32_t read_vendor_err(struct ibv_cq_ex *cq) { return current(cq)->vendor_err; }
static uint32_t read_byte_len(struct ibv_cq_ex *cq) { return current(cq)->byte_len; }
static __be32 read_imm_data(struct ibv_cq_ex *cq) { return current(cq)->imm_data; }
static uint32_t read_qp_num(struct ibv_cq_ex *cq) { return current(cq)->qp_num; }
static uint32_t read_src_qp(struct ibv_cq_ex *cq) { return current(cq)->src_qp; }
static unsigned int read_wc_flags(struct ibv_cq_ex *cq) { return current(cq)->wc_flags; }
static uint32_t read_slid(struct ibv_cq_ex *cq) { return current(cq)->slid; }
static uint8_t read_sl(struct ibv_cq_ex *cq) { return current(cq)->sl; }
static uint8_t read_dlid_path_bits(struct ibv_cq_ex *cq) { return current(cq)->dlid_path_bits; }

static uint64_t read_completion_ts(struct ibv_cq_ex *cq)
{
	return extended(cq)->extras[extended(cq)->first].ticks;
}

static uint64_t read_completion_wallclock_ns(struct ibv_cq_ex *cq)
{
	return extended(cq)->extras[extended(cq)->first].wall_clock;
}

#define SUPPORTED_WC_FLAGS \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

struct ibv_cq_ex *vb_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	struct vb_cq *q;

	if (attr->comp_mask & ~(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) || attr->wc_flags & ~(uint64_t)SUPPORTED_WC_FLAGS)
		return vb_fail(EOPNOTSUPP);
	// The queue locks whatever the program promises. It cannot overrun without an error.
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS && attr->flags & ~IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
		return vb_fail(EOPNOTSUPP);
	if (attr->comp_vector >= (uint32_t)context->num_comp_vectors)
		return vb_fail(EINVAL);
	q = create(context, attr->cqe, attr->cq_context, attr->channel, attr->wc_flags);
	if (!q)
		return NULL;
	q->is_extended = true;
	q->extended.start_poll = start_poll;
	q->extended.next_poll = next_poll;
	q->extended.end_poll = end_poll;
	q->extended.read_opcode = read_opcode;
	q->extended.read_vendor_err = read_vendor_err;
	q->extended.read_wc_flags = read_wc_flags;
	q->extended.read_byte_len = read_byte_len;
	q->extended.read_imm_data = read_imm_data;
	q->extended.read_qp_num = read_qp_num;
	q->extended.read_src_qp = read_src_qp;
	q->extended.read_slid = read_slid;
	q->extended.read_sl = read_sl;
	q->extended.read_dlid_path_bits = read_dlid_path_bits;
	if (attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		q->extended.read_completion_ts = read_completion_ts;
	if (attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		q->extended.read_completion_wallclock_ns = read_completion_wallclock_ns;
	return &q->extended;
}
