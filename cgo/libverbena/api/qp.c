// Queue pairs, shared receive queues and multicast groups.

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbena.h"

static struct vb_qp *qp_of(struct ibv_qp *qp)
{
	return vb_container(qp, struct vb_qp, base);
}

static struct vb_srq *srq_of(struct ibv_srq *srq)
{
	return vb_container(srq, struct vb_srq, base);
}

// create_srq makes an XRC queue if xrcd is not NULL.
static struct ibv_srq *create_srq(struct ibv_pd *pd, struct ibv_xrcd *xrcd, struct ibv_cq *cq, struct ibv_srq_init_attr *attr)
{
	struct vb_srq *q = calloc(1, sizeof *q);
	struct vd_new_object made;
	int error = q ? vb_ready() : ENOMEM;

	if (!error)
		error = vb.create_srq(pd->handle, xrcd ? vb_xrcd_handle(xrcd) : 0, xrcd ? cq->handle : 0, q, &attr->attr, &made);
	if (error) {
		free(q);
		return vb_fail(error);
	}
	q->base.context = pd->context;
	q->base.srq_context = attr->srq_context;
	q->base.pd = pd;
	q->base.handle = made.handle;
	q->number = xrcd ? made.number : 0;
	q->attr = attr->attr;
	pthread_mutex_init(&q->base.mutex, NULL);
	pthread_cond_init(&q->base.cond, NULL);
	return &q->base;
}

VB_EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	return create_srq(pd, NULL, NULL, attr);
}

// The header calls ibv_create_srq for most basic queues.
struct ibv_srq *vb_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
	const uint32_t pd = IBV_SRQ_INIT_ATTR_PD, all = pd | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;

	(void)context;
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) || attr->srq_type != IBV_SRQT_XRC || attr->comp_mask & ~all)
		return vb_fail(EOPNOTSUPP);
	if (attr->comp_mask != all || !attr->pd || !attr->xrcd || !attr->cq)
		return vb_fail(EINVAL);
	// The members up to comp_mask are those of ibv_srq_init_attr.
	return create_srq(attr->pd, attr->xrcd, attr->cq, (struct ibv_srq_init_attr *)attr);
}

VB_EXPORT int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	int error = vb_ready();

	if (!error && mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT))
		error = EINVAL;
	if (!error && mask & IBV_SRQ_MAX_WR)
		error = EOPNOTSUPP; // IBV_DEVICE_SRQ_RESIZE is not among the capabilities
	if (!error && mask & IBV_SRQ_LIMIT)
		error = vb.arm_srq(srq->handle, attr->srq_limit);
	return error;
}

VB_EXPORT int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	int error = vb_ready();

	if (error)
		return error;
	*attr = srq_of(srq)->attr;
	return vb.srq_limit(srq->handle, &attr->srq_limit);
}

VB_EXPORT int ibv_destroy_srq(struct ibv_srq *srq)
{
	struct vb_srq *q = srq_of(srq);
	int error = vb_ready();

	if (!error)
		error = vb.destroy(VD_SRQ, srq->handle);
	if (error)
		return error;
	vb_events_drop(&vb_context(srq->context)->async, q);
	vb_events_await(&srq->mutex, &srq->cond, &srq->events_completed, &q->asyncs);
	pthread_mutex_destroy(&srq->mutex);
	pthread_cond_destroy(&srq->cond);
	free(q);
	return 0;
}

int vb_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int error = vb_ready();

	if (!error)
		return vb.post_srq_recv(srq->handle, wr, bad);
	*bad = wr;
	return error;
}

// LEAST_INLINE is the room for inline data of a queue pair. Programs send a few bytes inline
// without asking for room, since drivers give what their requests have anyway.
#define LEAST_INLINE 64

// SRD_INLINE is the same for SRD, which cannot have more.
#define SRD_INLINE 32

struct vb_qp *vb_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, bool unsolicited)
{
	const uint32_t least = attr->qp_type == IBV_QPT_DRIVER ? SRD_INLINE : LEAST_INLINE;
	struct vb_qp *q;
	struct vd_new_object made;
	struct vd_queue_pair_init init = {.type = attr->qp_type, .signal_all = attr->sq_sig_all, .unsolicited = unsolicited};
	int error = vb_ready();

	if (!error && (!attr->send_cq || !attr->recv_cq && attr->qp_type != IBV_QPT_XRC_SEND))
		error = EINVAL;
	if (error)
		return vb_fail(error);
	q = calloc(1, sizeof *q);
	if (!q)
		return vb_fail(ENOMEM);
	if (attr->cap.max_inline_data < least)
		attr->cap.max_inline_data = least;
	init.cap = attr->cap;
	init.send_cq = attr->send_cq->handle;
	init.recv_cq = (attr->recv_cq ? attr->recv_cq : attr->send_cq)->handle;
	init.srq = attr->srq ? attr->srq->handle : 0;
	error = vb.create_qp(pd->handle, q, &init, &made);
	if (error) {
		free(q);
		return vb_fail(error);
	}
	q->base.context = pd->context;
	q->base.qp_context = attr->qp_context;
	q->base.pd = pd;
	q->base.send_cq = attr->send_cq;
	q->base.recv_cq = attr->recv_cq;
	q->base.srq = attr->srq;
	q->base.handle = made.handle;
	q->base.qp_num = made.number;
	q->base.qp_type = attr->qp_type;
	q->base.state = IBV_QPS_RESET;
	pthread_mutex_init(&q->base.mutex, NULL);
	pthread_cond_init(&q->base.cond, NULL);
	if (attr->srq || attr->qp_type == IBV_QPT_XRC_SEND)
		attr->cap.max_recv_wr = attr->cap.max_recv_sge = 0;
	attr->cap.max_send_wr = made.capacity;
	q->cap = attr->cap;
	q->signal_all = attr->sq_sig_all;
	return q;
}

VB_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	if (attr->qp_type == IBV_QPT_DRIVER)
		return vb_fail(EOPNOTSUPP); // those of libefa make it
	struct vb_qp *q = vb_create_qp(pd, attr, false);

	return q ? &q->base : NULL;
}

#define SUPPORTED_SEND_OPS \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND | \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | \
	 IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_WRITE)

struct ibv_qp *vb_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	struct vb_qp *q;
	int error;

	(void)context;
	if (attr->qp_type == IBV_QPT_DRIVER || attr->comp_mask & ~known || attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && attr->create_flags)
		return vb_fail(EOPNOTSUPP);
	if (attr->qp_type == IBV_QPT_XRC_RECV)
		return vb_create_xrc_recv(attr);
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD))
		return vb_fail(EINVAL);
	if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS && attr->send_ops_flags & ~(uint64_t)SUPPORTED_SEND_OPS)
		return vb_fail(EOPNOTSUPP);
	// The members up to comp_mask are those of ibv_qp_init_attr.
	q = vb_create_qp(attr->pd, (struct ibv_qp_init_attr *)attr, false);
	if (!q)
		return NULL;
	if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS && (error = vb_extend(q))) {
		ibv_destroy_qp(&q->base);
		return vb_fail(error);
	}
	return &q->base;
}

// discard_completions drops what is not read. Queue pairs of XRC may lack a completion queue.
static void discard_completions(struct ibv_qp *qp)
{
	if (qp->send_cq)
		vb_discard_completions(qp->send_cq, qp->qp_num);
	if (qp->recv_cq)
		vb_discard_completions(qp->recv_cq, qp->qp_num);
}

VB_EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int error = vb_ready();

	if (!error)
		error = vb.modify_qp(qp->handle, attr, mask);
	if (error || !(mask & IBV_QP_STATE))
		return error;
	qp->state = attr->qp_state;
	if (qp->state == IBV_QPS_RESET)
		discard_completions(qp);
	return 0;
}

VB_EXPORT int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct vb_qp *q = qp_of(qp);
	int error = vb_ready();

	if (!error)
		error = vb.query_qp(qp->handle, attr); // all attributes
	if (error)
		return error;
	if (mask & IBV_QP_STATE)
		qp->state = attr->qp_state;
	attr->cap = q->cap;
	*init = (struct ibv_qp_init_attr){
		.qp_context = qp->qp_context, .send_cq = qp->send_cq, .recv_cq = qp->recv_cq, .srq = qp->srq,
		.cap = q->cap, .qp_type = qp->qp_type, .sq_sig_all = q->signal_all,
	};
	return 0;
}

VB_EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp, (void)op, (void)flags;
	return 0; // not promised
}

VB_EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct vb_qp *q = qp_of(qp);
	int error = vb_ready();

	if (!error)
		error = vb.destroy(VD_QP, qp->handle);
	if (error)
		return error;
	discard_completions(qp);
	vb_events_drop(&vb_context(qp->context)->async, q);
	vb_events_await(&qp->mutex, &qp->cond, &qp->events_completed, &q->asyncs);
	pthread_mutex_destroy(&qp->mutex);
	pthread_cond_destroy(&qp->cond);
	vb_builder_free(&q->builder);
	free(q);
	return 0;
}

int vb_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int error = vb_ready();

	if (!error)
		return vb.post_send(qp->handle, wr, bad);
	*bad = wr;
	return error;
}

int vb_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int error = vb_ready();

	if (!error)
		return vb.post_recv(qp->handle, wr, bad);
	*bad = wr;
	return error;
}

VB_EXPORT int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *group, uint16_t lid)
{
	int error = vb_ready();

	(void)lid; // InfiniBand only
	return error ? error : vb.attach_mcast(qp->handle, group, 1);
}

VB_EXPORT int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *group, uint16_t lid)
{
	int error = vb_ready();

	(void)lid;
	return error ? error : vb.attach_mcast(qp->handle, group, 0);
}

// Enhanced connection establishment exchanges what adapters of one vendor have. Software devices
// have none of it.

VB_EXPORT int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp, (void)ece;
	return EOPNOTSUPP;
}

VB_EXPORT int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp, (void)ece;
	return EOPNOTSUPP;
}
