//go:build linux && cgo && verbs

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "verbena_extended.h"

// The operations are called through the table of the device's context, as libibverbs' inline
// functions do. Those cannot be used here: they name functions of the library, which is not
// linked.

void vb_query_clock(struct ibv_context *ctx, uint64_t *timestamp_mask, uint64_t *khz)
{
	struct verbs_context *v = verbs_get_ctx_op(ctx, query_device_ex);
	struct ibv_device_attr_ex attr;

	memset(&attr, 0, sizeof attr);
	if (!v || v->query_device_ex(ctx, NULL, &attr, sizeof attr))
		memset(&attr, 0, sizeof attr);
	*timestamp_mask = attr.completion_timestamp_mask;
	*khz = attr.hca_core_clock;
}

struct ibv_cq_ex *vb_create_cq_ex(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr)
{
	struct verbs_context *v = verbs_get_ctx_op(ctx, create_cq_ex);

	if (!v) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return v->create_cq_ex(ctx, attr);
}

struct ibv_qp *vb_create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr)
{
	struct verbs_context *v = verbs_get_ctx_op(ctx, create_qp_ex);

	if (!v) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return v->create_qp_ex(ctx, attr);
}

// read_receive reads the fields that only completions of receives have.
static void read_receive(const struct vb_poller *p, struct ibv_wc *wc, struct vb_wc_extra *extra)
{
	struct ibv_cq_ex *cq = p->cq;

	wc->byte_len = ibv_wc_read_byte_len(cq);
	wc->src_qp = ibv_wc_read_src_qp(cq);
	if (p->wc_flags & IBV_WC_EX_WITH_SLID)
		wc->slid = ibv_wc_read_slid(cq);
	if (p->wc_flags & IBV_WC_EX_WITH_SL)
		wc->sl = ibv_wc_read_sl(cq);
	if (wc->wc_flags & IBV_WC_WITH_IMM)
		wc->imm_data = ibv_wc_read_imm_data(cq);
	else if (wc->wc_flags & IBV_WC_WITH_INV)
		wc->invalidated_rkey = ibv_wc_read_invalidated_rkey(cq);
	if (p->is_unsolicited)
		extra->unsolicited = p->is_unsolicited(p->provider) != 0;
	if (!p->source)
		return;
	extra->source_ah = ibv_wc_read_slid(cq);
	if (extra->source_ah == UINT16_MAX && p->read_sgid)
		(void)p->read_sgid(p->provider, &extra->source_gid);
}

static void read_completion(const struct vb_poller *p, struct ibv_wc *wc, struct vb_wc_extra *extra)
{
	struct ibv_cq_ex *cq = p->cq;

	memset(wc, 0, sizeof *wc);
	memset(extra, 0, sizeof *extra);
	if (p->source)
		extra->source_ah = UINT16_MAX;
	wc->wr_id = cq->wr_id;
	wc->status = cq->status;
	wc->qp_num = ibv_wc_read_qp_num(cq);
	if (wc->status != IBV_WC_SUCCESS) {
		wc->vendor_err = ibv_wc_read_vendor_err(cq);
		return;
	}
	wc->opcode = ibv_wc_read_opcode(cq);
	wc->wc_flags = ibv_wc_read_wc_flags(cq);
	if (wc->opcode & IBV_WC_RECV)
		read_receive(p, wc, extra);
	else if (wc->opcode == IBV_WC_RDMA_READ || wc->opcode == IBV_WC_COMP_SWAP || wc->opcode == IBV_WC_FETCH_ADD)
		wc->byte_len = ibv_wc_read_byte_len(cq);
	if (p->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		extra->timestamp = ibv_wc_read_completion_ts(cq);
	if (p->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		extra->wall_clock = ibv_wc_read_completion_wallclock_ns(cq);
}

// poll takes completions off the queue between one ibv_start_poll and its ibv_end_poll.
static int poll(const struct vb_poller *p, int max, struct ibv_wc *wcs, struct vb_wc_extra *extras)
{
	struct ibv_poll_cq_attr attr = {0};
	int n = 0, result = ibv_start_poll(p->cq, &attr);

	// After a failed ibv_start_poll, ibv_end_poll must not be called.
	if (result == ENOENT)
		return 0;
	if (result)
		return result < 0 ? result : -result;
	do {
		read_completion(p, &wcs[n], &extras[n]);
		n++;
	} while (n < max && ibv_next_poll(p->cq) == 0);
	// If the queue is broken and not just empty, the next ibv_start_poll fails.
	ibv_end_poll(p->cq);
	return n;
}

int vb_poll_cq_ex(uintptr_t poller, int max, uintptr_t wc, uintptr_t extra)
{
	const struct vb_poller *p = (const struct vb_poller *)poller;
	struct ibv_wc *wcs = (struct ibv_wc *)wc;
	struct vb_wc_extra *extras = (struct vb_wc_extra *)extra;
	int n = 0, result;

	if (!p->singly)
		return poll(p, max, wcs, extras);
	while (n < max) {
		result = poll(p, 1, &wcs[n], &extras[n]);
		if (result <= 0)
			return n > 0 ? n : result;
		n++;
	}
	return n;
}

// set_inline_data copies the data together, because ibv_wr_set_inline_data_list of rxe
// (rdma-core 44) sends no data. The caller has checked that the data fits.
static void set_inline_data(const struct vb_poster *p, const struct ibv_send_wr *wr)
{
	size_t n = 0;

	for (int i = 0; i < wr->num_sge; i++) {
		memcpy(p->gathered + n, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		n += wr->sg_list[i].length;
	}
	ibv_wr_set_inline_data(p->qp, p->gathered, n);
}

// build adds a request to a batch, between ibv_wr_start and ibv_wr_complete.
static int build(const struct vb_poster *p, const struct ibv_send_wr *wr, const struct vb_destination *dst)
{
	struct ibv_qp_ex *qp = p->qp;

	qp->wr_id = wr->wr_id;
	qp->wr_flags = wr->send_flags;
	switch (wr->opcode) {
	case IBV_WR_SEND:
		ibv_wr_send(qp);
		break;
	case IBV_WR_SEND_WITH_IMM:
		ibv_wr_send_imm(qp, wr->imm_data);
		break;
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		ibv_wr_atomic_cmp_swp(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add, wr->wr.atomic.swap);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		ibv_wr_atomic_fetch_add(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add);
		break;
	case IBV_WR_SEND_WITH_INV:
		ibv_wr_send_inv(qp, wr->invalidate_rkey);
		break;
	case IBV_WR_LOCAL_INV:
		ibv_wr_local_inv(qp, wr->invalidate_rkey);
		return 0; // it has no data, nor has a bind
	case IBV_WR_BIND_MW:
		ibv_wr_bind_mw(qp, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		return 0;
	default:
		return EOPNOTSUPP;
	}
	if (dst)
		ibv_wr_set_ud_addr(qp, dst->ah, dst->qpn, dst->qkey);
	if (wr->send_flags & IBV_SEND_INLINE)
		set_inline_data(p, wr);
	else
		ibv_wr_set_sge_list(qp, wr->num_sge, wr->sg_list);
	return 0;
}

// post_all posts n requests, or none.
static int post_all(const struct vb_poster *p, const struct ibv_send_wr *wrs, int from, int n)
{
	int result;

	ibv_wr_start(p->qp);
	for (int i = from; i < from + n; i++) {
		result = build(p, &wrs[i], p->destinations ? &p->destinations[i] : NULL);
		if (result) {
			ibv_wr_abort(p->qp);
			return result;
		}
	}
	result = ibv_wr_complete(p->qp);
	if (result == -1)
		return errno ? errno : EIO;
	return result < 0 ? -result : result;
}

int64_t vb_post_send_ex(uintptr_t poster, uintptr_t wr, int n)
{
	const struct vb_poster *p = (const struct vb_poster *)poster;
	const struct ibv_send_wr *wrs = (const struct ibv_send_wr *)wr;
	int result = post_all(p, wrs, 0, n);

	if (result == 0 || n == 1)
		return result;
	// The device took nothing of a refused batch, and does not report which request it
	// refused. Post them one by one to find out.
	for (int i = 0; i < n; i++) {
		result = post_all(p, wrs, i, 1);
		if (result)
			return (int64_t)i << 32 | result;
	}
	return 0;
}
