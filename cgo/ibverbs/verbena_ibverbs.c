//go:build linux && cgo && verbs

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "verbena_ibverbs.h"

#define VB_MEMBER(name, symbol, version, result, parameters) result(*name) parameters;
static struct {
	VB_FUNCTIONS(VB_MEMBER)
	VB_OPTIONAL(VB_MEMBER)
} lib;

const char *vb_load(void)
{
	static char message[512];
	void *handle;

	handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!handle) {
		// Copy dlerror's text: it belongs to the thread, and Go may change threads.
		snprintf(message, sizeof message, "%s", dlerror());
		return message;
	}
#define VB_RESOLVE(name, symbol, version, result, parameters) \
	*(void **)&lib.name = dlvsym(handle, symbol, version); \
	if (!lib.name) { \
		snprintf(message, sizeof message, "libibverbs.so.1 is too old: it has no %s of version %s", symbol, version); \
		return message; \
	}
	VB_FUNCTIONS(VB_RESOLVE)
#define VB_LOOK_FOR(name, symbol, version, result, parameters) *(void **)&lib.name = dlvsym(handle, symbol, version);
	VB_OPTIONAL(VB_LOOK_FOR)
	return NULL;
}

// errno_of: some providers return -1 and set errno, some return an errno, some its negative.
static int errno_of(int result)
{
	if (result == 0)
		return 0;
	if (result == -1)
		return errno ? errno : EIO;
	return result < 0 ? -result : result;
}

struct ibv_device **vb_get_device_list(int *count) { return lib.get_device_list(count); }
void vb_free_device_list(struct ibv_device **list) { lib.free_device_list(list); }
uint64_t vb_get_device_guid(struct ibv_device *device) { return be64toh(lib.get_device_guid(device)); }
struct ibv_context *vb_open_device(struct ibv_device *device) { return lib.open_device(device); }
int vb_close_device(struct ibv_context *ctx) { return errno_of(lib.close_device(ctx)); }

int vb_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	return errno_of(lib.query_device(ctx, attr));
}

int vb_query_port(struct ibv_context *ctx, int port, struct ibv_port_attr *attr)
{
	struct verbs_context *v = verbs_get_ctx_op(ctx, query_port);

	memset(attr, 0, sizeof *attr);
	if (v)
		return errno_of(v->query_port(ctx, port, attr, sizeof *attr));
	return errno_of(lib.query_port(ctx, port, attr));
}

ssize_t vb_query_gid_table(struct ibv_context *ctx, struct ibv_gid_entry *entries, size_t max)
{
	return lib.query_gid_table(ctx, entries, max, 0, sizeof *entries);
}

struct ibv_pd *vb_alloc_pd(struct ibv_context *ctx) { return lib.alloc_pd(ctx); }
int vb_dealloc_pd(struct ibv_pd *pd) { return errno_of(lib.dealloc_pd(pd)); }

struct ibv_mr *vb_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t length, unsigned int access)
{
	return lib.reg_mr(pd, (void *)addr, length, addr, access);
}

struct ibv_mr *vb_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, unsigned int access)
{
	if (!lib.reg_dmabuf_mr) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return lib.reg_dmabuf_mr(pd, offset, length, iova, fd, access);
}

int vb_dereg_mr(struct ibv_mr *mr) { return errno_of(lib.dereg_mr(mr)); }
struct ibv_ah *vb_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr) { return lib.create_ah(pd, attr); }
int vb_destroy_ah(struct ibv_ah *ah) { return errno_of(lib.destroy_ah(ah)); }

struct ibv_mw *vb_alloc_mw(struct ibv_pd *pd, int type) { return ibv_alloc_mw(pd, type); }
int vb_dealloc_mw(struct ibv_mw *mw) { return errno_of(ibv_dealloc_mw(mw)); }

int vb_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, uint64_t id, unsigned int flags, struct ibv_mr *mr, uint64_t addr, uint64_t length, unsigned int access)
{
	struct ibv_mw_bind bind = {
		.wr_id = id,
		.send_flags = flags,
		.bind_info = {.mr = mr, .addr = addr, .length = length, .mw_access_flags = access},
	};

	return errno_of(ibv_bind_mw(qp, mw, &bind));
}

int vb_attach_mcast(struct ibv_qp *qp, union ibv_gid *group, uint16_t lid)
{
	return errno_of(lib.attach_mcast(qp, group, lid));
}

int vb_detach_mcast(struct ibv_qp *qp, union ibv_gid *group, uint16_t lid)
{
	return errno_of(lib.detach_mcast(qp, group, lid));
}

struct ibv_comp_channel *vb_create_comp_channel(struct ibv_context *ctx) { return lib.create_comp_channel(ctx); }
int vb_destroy_comp_channel(struct ibv_comp_channel *channel) { return errno_of(lib.destroy_comp_channel(channel)); }

struct ibv_cq *vb_create_cq(struct ibv_context *ctx, int entries, struct ibv_comp_channel *channel, int vector)
{
	return lib.create_cq(ctx, entries, NULL, channel, vector);
}

int vb_destroy_cq(struct ibv_cq *cq) { return errno_of(lib.destroy_cq(cq)); }
int vb_poll_cq(uintptr_t cq, int max, uintptr_t wc)
{
	return ibv_poll_cq((struct ibv_cq *)cq, max, (struct ibv_wc *)wc);
}

int vb_req_notify_cq(struct ibv_cq *cq, int solicited) { return errno_of(ibv_req_notify_cq(cq, solicited)); }

struct ibv_srq *vb_create_srq(struct ibv_pd *pd, uint32_t receives, uint32_t entries)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = receives, .max_sge = entries}};

	return lib.create_srq(pd, &init);
}

int vb_limit_srq(struct ibv_srq *srq, uint32_t limit)
{
	struct ibv_srq_attr attr = {.srq_limit = limit};

	return errno_of(lib.modify_srq(srq, &attr, IBV_SRQ_LIMIT));
}

int vb_destroy_srq(struct ibv_srq *srq) { return errno_of(lib.destroy_srq(srq)); }

struct ibv_qp *vb_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) { return lib.create_qp(pd, attr); }

int vb_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return errno_of(lib.modify_qp(qp, attr, mask));
}

int vb_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, struct ibv_qp_init_attr *init)
{
	// EFA's driver refuses a query of attributes that its queue pairs do not have.
	const int driver = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY | IBV_QP_SQ_PSN | IBV_QP_CAP;
	const int mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY |
			 IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			 IBV_QP_RQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN |
			 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_CAP | IBV_QP_DEST_QPN;

	memset(attr, 0, sizeof *attr);
	memset(init, 0, sizeof *init);
	return errno_of(lib.query_qp(qp, attr, qp->qp_type == IBV_QPT_DRIVER ? driver : mask, init));
}

int vb_destroy_qp(struct ibv_qp *qp) { return errno_of(lib.destroy_qp(qp)); }
struct ibv_qp_ex *vb_qp_to_qp_ex(struct ibv_qp *qp) { return lib.qp_to_qp_ex(qp); }

static int64_t posted(int result, ptrdiff_t index)
{
	return result ? (int64_t)index << 32 | errno_of(result) : 0;
}

int64_t vb_post_send(uintptr_t qp, uintptr_t wr)
{
	struct ibv_send_wr *first = (struct ibv_send_wr *)wr, *bad = NULL;
	int result = ibv_post_send((struct ibv_qp *)qp, first, &bad);

	return posted(result, bad ? bad - first : 0);
}

int64_t vb_post_recv(uintptr_t qp, uintptr_t wr)
{
	struct ibv_recv_wr *first = (struct ibv_recv_wr *)wr, *bad = NULL;
	int result = ibv_post_recv((struct ibv_qp *)qp, first, &bad);

	return posted(result, bad ? bad - first : 0);
}

int64_t vb_post_srq_recv(uintptr_t srq, uintptr_t wr)
{
	struct ibv_recv_wr *first = (struct ibv_recv_wr *)wr, *bad = NULL;
	int result = ibv_post_srq_recv((struct ibv_srq *)srq, first, &bad);

	return posted(result, bad ? bad - first : 0);
}

int vb_cq_events(struct ibv_cq *cq)
{
	struct ibv_cq *same;
	void *context;
	int n = 0;

	while (lib.get_cq_event(cq->channel, &same, &context) == 0)
		n++;
	if (n > 0)
		lib.ack_cq_events(cq, n);
	return n;
}

int vb_get_async_event(struct ibv_context *ctx, struct ibv_async_event *raw, struct vb_event *event)
{
	if (lib.get_async_event(ctx, raw))
		return errno ? errno : EIO;
	memset(event, 0, sizeof *event);
	event->type = raw->event_type;
	switch (raw->event_type) {
	case IBV_EVENT_CQ_ERR:
		event->object = (uintptr_t)raw->element.cq;
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		event->object = (uintptr_t)raw->element.srq;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		event->qpn = raw->element.qp->qp_num;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		event->port = raw->element.port_num;
		break;
	default:
		break;
	}
	return 0;
}

void vb_ack_async_event(struct ibv_async_event *raw) { lib.ack_async_event(raw); }
