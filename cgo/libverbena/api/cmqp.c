// Queue pairs and shared receive queues of identifiers.

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cm.h"

int vb_cm_modify_qp(struct vb_cm_id *id, enum ibv_qp_state state, uint8_t responder_resources, uint8_t initiator_depth)
{
	struct ibv_qp *qp = id->base.qp;
	struct ibv_qp_attr attr = {.qp_state = state};
	int error;

	if (!qp)
		return 0;
	if (state == IBV_QPS_ERR)
		return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	error = vb.cm_modify_qp(id->handle, qp->handle, state, responder_resources, initiator_depth);
	if (!error)
		qp->state = state;
	return error;
}

VB_EXPORT int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	int error = vb_ready();

	if (!error)
		error = vb.cm_qp_attr(vb_cm_id(id)->handle, attr->qp_state, attr, mask);
	return vb_result(error);
}

static void destroy_cqs(struct rdma_cm_id *id)
{
	if (id->send_cq)
		ibv_destroy_cq(id->send_cq);
	if (id->recv_cq)
		ibv_destroy_cq(id->recv_cq);
	if (id->send_cq_channel)
		ibv_destroy_comp_channel(id->send_cq_channel);
	if (id->recv_cq_channel)
		ibv_destroy_comp_channel(id->recv_cq_channel);
	id->send_cq = id->recv_cq = NULL;
	id->send_cq_channel = id->recv_cq_channel = NULL;
}

// create_cq makes a completion queue with a channel. It returns an errno.
static int create_cq(struct rdma_cm_id *id, uint32_t size, struct ibv_comp_channel **channel, struct ibv_cq **cq)
{
	if (!size)
		return 0;
	*channel = ibv_create_comp_channel(id->verbs);
	if (!*channel)
		return errno;
	*cq = ibv_create_cq(id->verbs, size, id, *channel, 0);
	return *cq ? 0 : errno;
}

// make_ready moves a new queue pair to the state in which programs get it. It returns an errno.
static int make_ready(struct vb_cm_id *id)
{
	enum ibv_qp_state last = id->base.qp_type == IBV_QPT_UD ? IBV_QPS_RTS : IBV_QPS_INIT;
	int error = 0;

	for (enum ibv_qp_state state = IBV_QPS_INIT; !error && state <= last; state++)
		error = vb_cm_modify_qp(id, state, RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH);
	return error;
}

VB_EXPORT int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	int error = vb_ready();

	if (!error && (id->qp || !id->verbs))
		error = EINVAL;
	if (error)
		return vb_result(error);
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd) {
		attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
		attr->pd = id->pd;
	}
	if (attr->pd->context != id->verbs)
		return vb_result(EINVAL);
	if (id->recv_cq && attr->recv_cq && id->recv_cq != attr->recv_cq || id->send_cq && attr->send_cq && id->send_cq != attr->send_cq)
		return vb_result(EINVAL);
	if (!attr->recv_cq && !id->recv_cq)
		error = create_cq(id, attr->cap.max_recv_wr, &id->recv_cq_channel, &id->recv_cq);
	if (!error && !attr->send_cq && !id->send_cq)
		error = create_cq(id, attr->cap.max_send_wr, &id->send_cq_channel, &id->send_cq);
	if (!attr->send_cq)
		attr->send_cq = id->send_cq;
	if (!attr->recv_cq)
		attr->recv_cq = id->recv_cq;
	if (!attr->srq)
		attr->srq = id->srq;
	if (!error && !(id->qp = ibv_create_qp_ex(id->verbs, attr)))
		error = errno;
	if (!error)
		error = make_ready(vb_cm_id(id));
	if (!error) {
		id->pd = id->qp->pd;
		return 0;
	}
	if (id->qp)
		ibv_destroy_qp(id->qp);
	id->qp = NULL;
	destroy_cqs(id);
	return vb_result(error);
}

VB_EXPORT int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex extended = {0};
	int result;

	// The members up to comp_mask are those of ibv_qp_init_attr.
	memcpy(&extended, attr, sizeof *attr);
	extended.comp_mask = IBV_QP_INIT_ATTR_PD;
	extended.pd = pd;
	result = rdma_create_qp_ex(id, &extended);
	memcpy(attr, &extended, sizeof *attr);
	return result;
}

VB_EXPORT void rdma_destroy_qp(struct rdma_cm_id *id)
{
	if (id->qp)
		ibv_destroy_qp(id->qp);
	id->qp = NULL;
	destroy_cqs(id);
}

VB_EXPORT int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
	int error = vb_ready();

	if (!error && (id->srq || !id->verbs || !(attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE)))
		error = EINVAL;
	if (error)
		return vb_result(error);
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd) {
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
		attr->pd = id->pd;
	}
	id->srq = ibv_create_srq_ex(id->verbs, attr);
	return id->srq ? 0 : -1;
}

VB_EXPORT int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_init_attr_ex extended = {0};
	int result;

	// The members up to comp_mask are those of ibv_srq_init_attr.
	memcpy(&extended, attr, sizeof *attr);
	extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
	extended.srq_type = id->qp_type == IBV_QPT_XRC_RECV ? IBV_SRQT_XRC : IBV_SRQT_BASIC;
	extended.pd = pd;
	result = rdma_create_srq_ex(id, &extended);
	memcpy(attr, &extended, sizeof *attr);
	return result;
}

VB_EXPORT void rdma_destroy_srq(struct rdma_cm_id *id)
{
	if (id->srq)
		ibv_destroy_srq(id->srq);
	id->srq = NULL;
}
