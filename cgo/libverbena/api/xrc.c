// Extended reliable connections (XRC).

#include <errno.h>
#include <stdlib.h>

#include "verbena.h"

struct vb_xrcd {
	struct ibv_xrcd base;
	uint32_t handle;
};

uint32_t vb_xrcd_handle(struct ibv_xrcd *xrcd)
{
	return vb_container(xrcd, struct vb_xrcd, base)->handle;
}

struct ibv_xrcd *vb_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr)
{
	const uint32_t needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	struct vb_xrcd *x = calloc(1, sizeof *x);
	int error = x ? vb_ready() : ENOMEM;

	if (!error && attr->comp_mask != needed)
		error = attr->comp_mask & ~needed ? EOPNOTSUPP : EINVAL;
	if (!error)
		error = vb.open_xrcd(vb_context(context)->handle, attr->fd, attr->oflags, &x->handle);
	if (error) {
		free(x);
		return vb_fail(error);
	}
	x->base.context = context;
	return &x->base;
}

int vb_close_xrcd(struct ibv_xrcd *xrcd)
{
	int error = vb_ready();

	if (!error)
		error = vb.destroy(VD_XRCD, vb_xrcd_handle(xrcd));
	if (!error)
		free(vb_container(xrcd, struct vb_xrcd, base));
	return error;
}

// open_qp makes an XRC receive queue pair, or opens the one with that number if it is not zero.
static struct ibv_qp *open_qp(struct ibv_xrcd *xrcd, uint32_t number, void *qp_context)
{
	struct vb_qp *q = calloc(1, sizeof *q);
	struct vd_new_object made;
	int error = q ? vb_ready() : ENOMEM;

	if (!error)
		error = vb.open_xrc_qp(vb_xrcd_handle(xrcd), q, number, &made);
	if (error) {
		free(q);
		return vb_fail(error);
	}
	q->base = (struct ibv_qp){
		.context = xrcd->context, .qp_context = qp_context, .handle = made.handle, .qp_num = made.number,
		.qp_type = IBV_QPT_XRC_RECV, .state = IBV_QPS_RESET,
	};
	pthread_mutex_init(&q->base.mutex, NULL);
	pthread_cond_init(&q->base.cond, NULL);
	return &q->base;
}

struct ibv_qp *vb_create_xrc_recv(struct ibv_qp_init_attr_ex *attr)
{
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_XRCD) || !attr->xrcd)
		return vb_fail(EINVAL);
	attr->cap = (struct ibv_qp_cap){0};
	return open_qp(attr->xrcd, 0, attr->qp_context);
}

struct ibv_qp *vb_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr)
{
	const uint32_t needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	struct ibv_qp_attr now;
	struct ibv_qp_init_attr init;
	struct ibv_qp *qp;

	if (attr->comp_mask >= IBV_QP_OPEN_ATTR_RESERVED)
		return vb_fail(EOPNOTSUPP);
	if ((attr->comp_mask & needed) != needed || attr->qp_type != IBV_QPT_XRC_RECV || !attr->qp_num || attr->xrcd->context != context)
		return vb_fail(EINVAL);
	qp = open_qp(attr->xrcd, attr->qp_num, attr->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT ? attr->qp_context : NULL);
	if (qp)
		ibv_query_qp(qp, &now, IBV_QP_STATE, &init); // which stores the state
	return qp;
}

int vb_get_srq_num(struct ibv_srq *srq, uint32_t *number)
{
	*number = vb_container(srq, struct vb_srq, base)->number;
	return *number ? 0 : EINVAL; // others than those of XRC have none
}
