// The functions by which programs build send requests (ibv_wr_post(3)).

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbena.h"

static struct vb_qp *qp_of(struct ibv_qp_ex *qp)
{
	return vb_container(qp, struct vb_qp, extended);
}

// The first error ends the list: wr_complete returns it and posts nothing.
static void refuse(struct vb_builder *b, int error)
{
	if (!b->error)
		b->error = error;
}

// current is the request that is being built, or NULL.
static struct ibv_send_wr *current(struct vb_builder *b)
{
	if (!b->count)
		refuse(b, EINVAL);
	return b->error ? NULL : &b->wrs[b->count - 1];
}

static void wr_start(struct ibv_qp_ex *qp)
{
	struct vb_builder *b = &qp_of(qp)->builder;

	pthread_mutex_lock(&b->lock);
	b->error = 0;
	b->count = 0;
}

static void wr_abort(struct ibv_qp_ex *qp)
{
	pthread_mutex_unlock(&qp_of(qp)->builder.lock);
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	struct vb_builder *b = &qp_of(qp)->builder;
	struct ibv_send_wr *bad;
	int error = b->error;

	if (!error && b->count)
		error = vb_post_send(&qp->qp_base, b->wrs, &bad);
	pthread_mutex_unlock(&b->lock);
	return error;
}

// max_sge is the number of entries of each request. Inline data takes one.
static size_t max_sge(const struct vb_qp *q)
{
	return q->cap.max_send_sge ? q->cap.max_send_sge : 1;
}

static struct ibv_send_wr *add(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode)
{
	struct vb_qp *q = qp_of(qp);
	struct vb_builder *b = &q->builder;
	struct ibv_send_wr *wr = &b->wrs[b->count];

	if (b->count == q->cap.max_send_wr)
		refuse(b, ENOMEM);
	if (b->error)
		return NULL;
	*wr = (struct ibv_send_wr){
		.wr_id = qp->wr_id, .opcode = opcode, .send_flags = qp->wr_flags & ~IBV_SEND_INLINE, .sg_list = &b->sges[b->count * max_sge(q)],
	};
	if (b->count++)
		wr[-1].next = wr;
	return wr;
}

static void add_rdma(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t remote_addr, __be32 imm)
{
	struct ibv_send_wr *wr = add(qp, opcode);

	if (!wr)
		return;
	wr->imm_data = imm;
	if (qp->qp_base.qp_type == IBV_QPT_DRIVER) {
		wr->opcode |= VD_SRD_REMOTE;
		wr->bind_mw.rkey = rkey;
		wr->bind_mw.bind_info.addr = remote_addr;
	} else {
		wr->wr.rdma.rkey = rkey;
		wr->wr.rdma.remote_addr = remote_addr;
	}
}

static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
	add_rdma(qp, IBV_WR_RDMA_READ, rkey, remote_addr, 0);
}

static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
	add_rdma(qp, IBV_WR_RDMA_WRITE, rkey, remote_addr, 0);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, __be32 imm)
{
	add_rdma(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr, imm);
}

static void add_atomic(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t remote_addr, uint64_t compare_add, uint64_t swap)
{
	struct ibv_send_wr *wr = add(qp, opcode);

	if (wr) {
		wr->wr.atomic.rkey = rkey;
		wr->wr.atomic.remote_addr = remote_addr;
		wr->wr.atomic.compare_add = compare_add;
		wr->wr.atomic.swap = swap;
	}
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t compare, uint64_t swap)
{
	add_atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote_addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t add)
{
	add_atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote_addr, add, 0);
}

static void wr_send(struct ibv_qp_ex *qp)
{
	add(qp, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm)
{
	struct ibv_send_wr *wr = add(qp, IBV_WR_SEND_WITH_IMM);

	if (wr)
		wr->imm_data = imm;
}

static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
	struct ibv_send_wr *wr = add(qp, IBV_WR_SEND_WITH_INV);

	if (wr)
		wr->invalidate_rkey = rkey;
}

static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
	struct ibv_send_wr *wr = add(qp, IBV_WR_LOCAL_INV);

	if (wr)
		wr->invalidate_rkey = rkey;
}

static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	struct ibv_send_wr *wr = add(qp, IBV_WR_BIND_MW);

	if (wr) {
		wr->bind_mw.mw = mw;
		wr->bind_mw.rkey = rkey;
		wr->bind_mw.bind_info = *info;
	}
}

static void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn, uint32_t remote_qkey)
{
	struct ibv_send_wr *wr = current(&qp_of(qp)->builder);

	if (wr) {
		wr->wr.ud.ah = ah;
		wr->wr.ud.remote_qpn = remote_qpn;
		wr->wr.ud.remote_qkey = remote_qkey;
	}
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t remote_srqn)
{
	struct ibv_send_wr *wr = current(&qp_of(qp)->builder);

	if (wr)
		wr->qp_type.xrc.remote_srqn = remote_srqn;
}

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *list)
{
	struct vb_qp *q = qp_of(qp);
	struct ibv_send_wr *wr = current(&q->builder);

	if (!wr)
		return;
	if (count > max_sge(q)) {
		refuse(&q->builder, EINVAL);
		return;
	}
	memcpy(wr->sg_list, list, count * sizeof *list);
	wr->num_sge = count;
	wr->send_flags &= ~IBV_SEND_INLINE;
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = {.addr = addr, .length = length, .lkey = lkey};

	wr_set_sge_list(qp, 1, &sge);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_data_buf *list)
{
	struct vb_qp *q = qp_of(qp);
	struct vb_builder *b = &q->builder;
	struct ibv_send_wr *wr = current(b);
	size_t total = 0;
	char *to;

	if (!wr)
		return;
	to = &b->bytes[(b->count - 1) * q->cap.max_inline_data];
	for (size_t i = 0; i < count; i++) {
		if (list[i].length > q->cap.max_inline_data - total) {
			refuse(b, EINVAL);
			return;
		}
		memcpy(to + total, list[i].addr, list[i].length);
		total += list[i].length;
	}
	*wr->sg_list = (struct ibv_sge){.addr = (uintptr_t)to, .length = total};
	wr->num_sge = 1;
	wr->send_flags |= IBV_SEND_INLINE;
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	struct ibv_data_buf buffer = {.addr = addr, .length = length};

	wr_set_inline_data_list(qp, 1, &buffer);
}

// wr_atomic_write takes the 8 bytes during the call.
static void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, const void *data)
{
	add_rdma(qp, IBV_WR_ATOMIC_WRITE, rkey, remote_addr, 0);
	wr_set_inline_data(qp, (void *)data, 8);
}

VB_EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct vb_qp *q = vb_container(qp, struct vb_qp, base);

	return q->is_extended ? &q->extended : NULL;
}

int vb_extend(struct vb_qp *q)
{
	struct ibv_qp_ex *qp = &q->extended;
	struct vb_builder *b = &q->builder;

	b->wrs = calloc(q->cap.max_send_wr, sizeof *b->wrs);
	b->sges = calloc(q->cap.max_send_wr, max_sge(q) * sizeof *b->sges);
	b->bytes = calloc(q->cap.max_send_wr, q->cap.max_inline_data);
	if (!b->wrs || !b->sges || !b->bytes)
		return ENOMEM; // vb_builder_free frees them
	q->is_extended = true;
	pthread_mutex_init(&b->lock, NULL);
	qp->wr_start = wr_start;
	qp->wr_complete = wr_complete;
	qp->wr_abort = wr_abort;
	qp->wr_rdma_read = wr_rdma_read;
	qp->wr_rdma_write = wr_rdma_write;
	qp->wr_rdma_write_imm = wr_rdma_write_imm;
	qp->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	qp->wr_atomic_fetch_add = wr_atomic_fetch_add;
	qp->wr_atomic_write = wr_atomic_write;
	qp->wr_send = wr_send;
	qp->wr_send_imm = wr_send_imm;
	qp->wr_send_inv = wr_send_inv;
	qp->wr_local_inv = wr_local_inv;
	qp->wr_bind_mw = wr_bind_mw;
	qp->wr_set_ud_addr = wr_set_ud_addr;
	qp->wr_set_xrc_srqn = wr_set_xrc_srqn;
	qp->wr_set_sge = wr_set_sge;
	qp->wr_set_sge_list = wr_set_sge_list;
	qp->wr_set_inline_data = wr_set_inline_data;
	qp->wr_set_inline_data_list = wr_set_inline_data_list;
	return 0;
}

void vb_builder_free(struct vb_builder *b)
{
	pthread_mutex_destroy(&b->lock);
	free(b->wrs);
	free(b->sges);
	free(b->bytes);
}
