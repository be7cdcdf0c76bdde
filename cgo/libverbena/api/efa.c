// libefa, for devices that look like an EFA. Programs recognise an EFA by its functions, which refuse
// other devices. Structs that programs give are longer or shorter with other headers.

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbena.h"

// EFA gives a function its name in libefa, and the structs of the headers above, which those of the
// system need not have.
#define EFA(name) __asm__("efadv_" #name) VB_EXPORT

static int check(struct ibv_context *context)
{
	return context->device->node_type == IBV_NODE_UNSPECIFIED ? vb_ready() : EOPNOTSUPP;
}

// take copies a program's struct of inlen bytes. It returns EINVAL if that asks for what this library
// does not know.
static int take(void *to, size_t size, const void *from, uint32_t inlen)
{
	const char *bytes = from;

	memset(to, 0, size);
	memcpy(to, from, inlen < size ? inlen : size);
	for (size_t i = size; i < inlen; i++)
		if (bytes[i])
			return EINVAL;
	return 0;
}

static void give(void *to, uint32_t inlen, const void *from, size_t size)
{
	memset(to, 0, inlen);
	memcpy(to, from, inlen < size ? inlen : size);
}

int efa_query_device(struct ibv_context *context, struct vb_efa_device_attr *attr, uint32_t inlen) EFA(query_device);
int efa_query_device(struct ibv_context *context, struct vb_efa_device_attr *attr, uint32_t inlen)
{
	struct vd_efa_attr limits;
	int error = check(context);

	if (!error && inlen < offsetof(struct vb_efa_device_attr, device_caps))
		error = EINVAL;
	if (!error)
		error = vb.query_efa(vb_context(context)->handle, &limits);
	if (error)
		return error;
	struct vb_efa_device_attr all = {
		.max_sq_wr = limits.max_send_wr, .max_rq_wr = limits.max_recv_wr,
		.max_sq_sge = limits.max_send_sge, .max_rq_sge = limits.max_recv_sge,
		.inline_buf_size = limits.max_inline, .max_rdma_size = limits.max_rdma,
		.device_caps = VB_EFA_CAP_RDMA_READ | VB_EFA_CAP_RNR_RETRY | VB_EFA_CAP_CQ_WITH_SGID | VB_EFA_CAP_RDMA_WRITE | VB_EFA_CAP_UNSOLICITED_WRITE_RECV,
	};
	give(attr, inlen, &all, sizeof all);
	return 0;
}

struct ibv_qp *efa_create_driver_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, uint32_t type) EFA(create_driver_qp);
struct ibv_qp *efa_create_driver_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, uint32_t type)
{
	int error = check(pd->context);

	if (!error && (type != VB_EFA_QP_SRD || attr->qp_type != IBV_QPT_DRIVER))
		error = EINVAL;
	if (error)
		return vb_fail(error);
	struct vb_qp *q = vb_create_qp(pd, attr, false);

	return q ? &q->base : NULL;
}

#define SRD_OPS \
	(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE | \
	 IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)

struct ibv_qp *efa_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr, struct vb_efa_qp_init_attr *efa, uint32_t inlen) EFA(create_qp_ex);
struct ibv_qp *efa_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr, struct vb_efa_qp_init_attr *efa, uint32_t inlen)
{
	bool extended = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	struct vb_efa_qp_init_attr own;
	int error = check(context);

	if (!error)
		error = take(&own, sizeof own, efa, inlen);
	if (!error && (own.comp_mask || own.reserved || own.driver_qp_type != VB_EFA_QP_SRD || attr->qp_type != IBV_QPT_DRIVER || !(attr->comp_mask & IBV_QP_INIT_ATTR_PD)))
		error = EINVAL;
	if (!error && (attr->comp_mask & ~(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) || own.flags & ~VB_EFA_QP_UNSOLICITED_WRITE_RECV || extended && attr->send_ops_flags & ~(uint64_t)SRD_OPS))
		error = EOPNOTSUPP;
	if (error)
		return vb_fail(error);
	// The members up to comp_mask are those of ibv_qp_init_attr.
	struct vb_qp *q = vb_create_qp(attr->pd, (struct ibv_qp_init_attr *)attr, own.flags & VB_EFA_QP_UNSOLICITED_WRITE_RECV);

	if (q && extended && (error = vb_extend(q))) {
		ibv_destroy_qp(&q->base);
		return vb_fail(error);
	}
	return q ? &q->base : NULL;
}

int efa_query_ah(struct ibv_ah *ah, struct vb_efa_ah_attr *attr, uint32_t inlen) EFA(query_ah);
int efa_query_ah(struct ibv_ah *ah, struct vb_efa_ah_attr *attr, uint32_t inlen)
{
	struct vb_efa_ah_attr all = {0};
	int error = check(ah->context);

	if (!error && inlen < offsetof(struct vb_efa_ah_attr, reserved))
		error = EINVAL;
	if (!error)
		error = vb.ah_number(ah->handle, &all.ahn);
	if (!error)
		give(attr, inlen, &all, sizeof all);
	return error;
}

// On an EFA the answer says through which of its interconnects it reaches the memory, if it knows. All
// zeros say that it does not.
int efa_query_mr(struct ibv_mr *mr, void *attr, uint32_t inlen) EFA(query_mr);
int efa_query_mr(struct ibv_mr *mr, void *attr, uint32_t inlen)
{
	int error = check(mr->context);

	if (!error)
		memset(attr, 0, inlen);
	return error;
}

static struct vb_cq *queue_of(struct vb_efa_cq *cq)
{
	return vb_container(cq, struct vb_cq, efa);
}

static int read_sgid(struct vb_efa_cq *cq, union ibv_gid *sgid)
{
	static const union ibv_gid unknown;
	const struct vd_extra *extra = &queue_of(cq)->extras[queue_of(cq)->first];

	if (!memcmp(&extra->sgid, &unknown, sizeof unknown))
		return -ENOENT; // it has an address handle
	*sgid = extra->sgid;
	return 0;
}

static bool is_unsolicited(struct vb_efa_cq *cq)
{
	return queue_of(cq)->extras[queue_of(cq)->first].unsolicited;
}

struct ibv_cq_ex *efa_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr, struct vb_efa_cq_init_attr *efa, uint32_t inlen) EFA(create_cq);
struct ibv_cq_ex *efa_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr, struct vb_efa_cq_init_attr *efa, uint32_t inlen)
{
	struct vb_efa_cq_init_attr own;
	int error = check(context);

	if (!error)
		error = take(&own, sizeof own, efa, inlen);
	if (!error && own.comp_mask)
		error = EINVAL;
	if (!error && own.wc_flags & ~(uint64_t)(VB_EFA_WC_SGID | VB_EFA_WC_IS_UNSOLICITED))
		error = EOPNOTSUPP;
	if (error)
		return vb_fail(error);
	struct ibv_cq_ex *made = vb_create_cq_ex(context, attr);
	struct vb_cq *q = made ? vb_container(made, struct vb_cq, extended) : NULL;

	if (q && own.wc_flags & VB_EFA_WC_SGID)
		q->efa.wc_read_sgid = read_sgid;
	if (q && own.wc_flags & VB_EFA_WC_IS_UNSOLICITED)
		q->efa.wc_is_unsolicited = is_unsolicited;
	return made;
}

struct vb_efa_cq *efa_cq_from_ibv_cq_ex(struct ibv_cq_ex *cq) EFA(cq_from_ibv_cq_ex);
struct vb_efa_cq *efa_cq_from_ibv_cq_ex(struct ibv_cq_ex *cq)
{
	return &vb_container(cq, struct vb_cq, extended)->efa;
}
