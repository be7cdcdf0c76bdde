// A libibverbs.so.1 without an adapter, to measure what a program costs above one. It has one
// device, null0, whose port has a RoCEv2 GID. Posting a request carries it out at once, by a copy
// within the process, and puts its completion into the completion queue. All keys are good.
//
// A queue pair and its completion queues belong to one thread at a time, together with those of
// its peer. Different threads may use different pairs.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#undef ibv_query_port
#undef ibv_reg_mr

enum { MAX_QP = 4096, MAX_SGE = 4, MAX_INLINE = 220, FIRST_QPN = 17 };

struct null_cq {
	struct ibv_cq base;
	struct ibv_wc *completions;
	uint32_t mask, head, tail;
	int armed;
};

struct null_channel {
	struct ibv_comp_channel base;
	struct ibv_cq *cq;
};

struct receive {
	uint64_t id;
	int num_sge;
	struct ibv_sge sgl[MAX_SGE];
};

struct receive_queue {
	struct receive *receives;
	uint32_t capacity, mask, head, tail;
};

struct null_srq {
	struct ibv_srq base;
	struct receive_queue queue;
};

struct null_qp {
	struct ibv_qp base;
	struct receive_queue own; // without a shared receive queue
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct null_qp *peer;
};

static struct null_qp *queue_pairs[MAX_QP];
static uint32_t last_qpn = FIRST_QPN - 1, last_key = 0x1000;

static uint32_t power_of_two(uint32_t n)
{
	uint32_t p = 1;
	while (p < n)
		p <<= 1;
	return p;
}

// The data path.

static inline struct ibv_wc *complete(struct ibv_cq *base, uint64_t id, enum ibv_wc_opcode opcode, uint32_t bytes, uint32_t qpn, enum ibv_wc_status status)
{
	struct null_cq *cq = (struct null_cq *)base;
	if (cq->head - cq->tail > cq->mask) {
		fputs("null: a completion queue overran\n", stderr);
		abort();
	}
	struct ibv_wc *wc = &cq->completions[cq->head++ & cq->mask];
	wc->wr_id = id;
	wc->status = status;
	wc->opcode = opcode;
	wc->vendor_err = 0;
	wc->byte_len = bytes;
	wc->qp_num = qpn;
	wc->wc_flags = 0;
	wc->src_qp = 0;
	if (__builtin_expect(cq->armed, 0)) {
		uint64_t one = 1;
		cq->armed = 0;
		if (base->channel && write(base->channel->fd, &one, sizeof one) < 0)
			perror("null: eventfd");
	}
	return wc;
}

static int poll_cq(struct ibv_cq *base, int max, struct ibv_wc *wc)
{
	struct null_cq *cq = (struct null_cq *)base;
	int n = 0;
	while (n < max && cq->tail != cq->head)
		wc[n++] = cq->completions[cq->tail++ & cq->mask];
	return n;
}

static int req_notify_cq(struct ibv_cq *base, int solicited_only)
{
	(void)solicited_only;
	((struct null_cq *)base)->armed = 1;
	return 0;
}

static int push(struct receive_queue *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	for (; wr; wr = wr->next) {
		if (q->head - q->tail >= q->capacity || wr->num_sge > MAX_SGE) {
			*bad = wr;
			return ENOMEM;
		}
		struct receive *r = &q->receives[q->head++ & q->mask];
		r->id = wr->wr_id;
		r->num_sge = wr->num_sge;
		memcpy(r->sgl, wr->sg_list, sizeof *r->sgl * wr->num_sge);
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return push(&((struct null_qp *)qp)->own, wr, bad);
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return push(&((struct null_srq *)srq)->queue, wr, bad);
}

// copy has a branch of its own for the size that is measured most.
static inline void copy(void *to, const void *from, uint32_t n)
{
	if (n == 8)
		memcpy(to, from, 8);
	else
		memcpy(to, from, n);
}

static inline uint32_t message_length(const struct ibv_send_wr *wr)
{
	uint32_t n = 0;
	for (int i = 0; i < wr->num_sge; i++)
		n += wr->sg_list[i].length;
	return n;
}

static inline void write_remote(const struct ibv_send_wr *wr)
{
	char *to = (char *)wr->wr.rdma.remote_addr;
	for (int i = 0; i < wr->num_sge; to += wr->sg_list[i++].length)
		copy(to, (void *)wr->sg_list[i].addr, wr->sg_list[i].length);
}

static inline void read_remote(const struct ibv_send_wr *wr)
{
	char *from = (char *)wr->wr.rdma.remote_addr;
	for (int i = 0; i < wr->num_sge; from += wr->sg_list[i++].length)
		copy((void *)wr->sg_list[i].addr, from, wr->sg_list[i].length);
}

static void scatter(const struct receive *r, const struct ibv_send_wr *wr)
{
	uint32_t from = 0, to = 0; // offsets in the entries i and j
	for (int i = 0, j = 0; i < wr->num_sge && j < r->num_sge;) {
		uint32_t n = wr->sg_list[i].length - from, room = r->sgl[j].length - to;
		if (room < n)
			n = room;
		copy((char *)r->sgl[j].addr + to, (char *)wr->sg_list[i].addr + from, n);
		from += n;
		to += n;
		if (from == wr->sg_list[i].length)
			i++, from = 0;
		if (to == r->sgl[j].length)
			j++, to = 0;
	}
}

// receive consumes a receive of the peer, for a message or for the immediate value of a write.
static enum ibv_wc_status receive(struct null_qp *qp, const struct ibv_send_wr *wr, enum ibv_wc_opcode opcode)
{
	struct null_qp *peer = qp->peer;
	if (!peer)
		return IBV_WC_RETRY_EXC_ERR;
	struct receive_queue *q = peer->base.srq ? &((struct null_srq *)peer->base.srq)->queue : &peer->own;
	if (q->head == q->tail)
		return IBV_WC_RNR_RETRY_EXC_ERR;
	struct receive *r = &q->receives[q->tail++ & q->mask];
	if (opcode == IBV_WC_RECV)
		scatter(r, wr);
	struct ibv_wc *wc = complete(peer->base.recv_cq, r->id, opcode, message_length(wr), peer->base.qp_num, IBV_WC_SUCCESS);
	wc->src_qp = qp->base.qp_num;
	if (wr->opcode == IBV_WR_SEND_WITH_IMM || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
		wc->wc_flags = IBV_WC_WITH_IMM;
		wc->imm_data = wr->imm_data;
	}
	return IBV_WC_SUCCESS;
}

static void add(const struct ibv_send_wr *wr)
{
	uint64_t *word = (uint64_t *)wr->wr.atomic.remote_addr;
	*(uint64_t *)wr->sg_list[0].addr = __atomic_fetch_add(word, wr->wr.atomic.compare_add, __ATOMIC_SEQ_CST);
}

static void compare_and_swap(const struct ibv_send_wr *wr)
{
	uint64_t *word = (uint64_t *)wr->wr.atomic.remote_addr, old = wr->wr.atomic.compare_add;
	__atomic_compare_exchange_n(word, &old, wr->wr.atomic.swap, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	*(uint64_t *)wr->sg_list[0].addr = old;
}

static const enum ibv_wc_opcode completion_of[] = {
	[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
	[IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
	[IBV_WR_SEND] = IBV_WC_SEND,
	[IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
	[IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
	[IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
};

static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct null_qp *qp = (struct null_qp *)base;
	int usable = base->state == IBV_QPS_RTS;
	for (; wr; wr = wr->next) {
		enum ibv_wc_status status = usable ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR;
		uint32_t bytes = 0;
		if (!usable && base->state != IBV_QPS_ERR) {
			*bad = wr;
			return EINVAL;
		}
		if (usable)
			switch (wr->opcode) {
			case IBV_WR_RDMA_WRITE:
				write_remote(wr);
				break;
			case IBV_WR_RDMA_WRITE_WITH_IMM:
				write_remote(wr);
				status = receive(qp, wr, IBV_WC_RECV_RDMA_WITH_IMM);
				break;
			case IBV_WR_SEND:
			case IBV_WR_SEND_WITH_IMM:
				status = receive(qp, wr, IBV_WC_RECV);
				break;
			case IBV_WR_RDMA_READ:
				read_remote(wr);
				bytes = message_length(wr);
				break;
			case IBV_WR_ATOMIC_FETCH_AND_ADD:
				add(wr);
				bytes = 8;
				break;
			case IBV_WR_ATOMIC_CMP_AND_SWP:
				compare_and_swap(wr);
				bytes = 8;
				break;
			default:
				*bad = wr;
				return EOPNOTSUPP;
			}
		if (wr->send_flags & IBV_SEND_SIGNALED || qp->init.sq_sig_all || status)
			complete(base->send_cq, wr->wr_id, completion_of[wr->opcode], bytes, base->qp_num, status);
	}
	return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	(void)pd, (void)type;
	errno = EOPNOTSUPP;
	return NULL;
}

static int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	(void)qp, (void)mw, (void)bind;
	return EOPNOTSUPP;
}

static int dealloc_mw(struct ibv_mw *mw)
{
	(void)mw;
	return 0;
}

// The device.

static struct ibv_device device = {
	.node_type = IBV_NODE_CA,
	.transport_type = IBV_TRANSPORT_IB,
	.name = "null0",
	.dev_name = "uverbs-null0",
	.dev_path = "/nonexistent/uverbs-null0",
	.ibdev_path = "/nonexistent/null0",
};

struct ibv_device **ibv_get_device_list(int *n)
{
	struct ibv_device **list = calloc(2, sizeof *list);
	list[0] = &device;
	if (n)
		*n = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }

__be64 ibv_get_device_guid(struct ibv_device *d)
{
	(void)d;
	return htobe64(0x0200000000000001ull);
}

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct ibv_context *c = calloc(1, sizeof *c);
	c->device = d;
	c->async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->cmd_fd = -1;
	c->num_comp_vectors = 1;
	c->ops.poll_cq = poll_cq;
	c->ops.req_notify_cq = req_notify_cq;
	c->ops.post_send = post_send;
	c->ops.post_recv = post_recv;
	c->ops.post_srq_recv = post_srq_recv;
	c->ops.alloc_mw = alloc_mw;
	c->ops.bind_mw = bind_mw;
	c->ops.dealloc_mw = dealloc_mw;
	return c;
}

int ibv_close_device(struct ibv_context *c)
{
	close(c->async_fd);
	free(c);
	return 0;
}

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	(void)c;
	*a = (struct ibv_device_attr){
		.fw_ver = "null", .node_guid = htobe64(0x0200000000000001ull), .vendor_id = 1, .phys_port_cnt = 1,
		.max_mr_size = 1ull << 40, .page_size_cap = 4096, .max_mr = 1 << 20, .max_pd = 4096, .max_ah = 4096,
		.max_qp = MAX_QP - FIRST_QPN, .max_qp_wr = 16384, .max_sge = 16, .max_sge_rd = 16,
		.max_cq = 4096, .max_cqe = 1 << 20, .max_srq = 4096, .max_srq_wr = 16384, .max_srq_sge = MAX_SGE,
		.max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16, .atomic_cap = IBV_ATOMIC_HCA, .max_pkeys = 1,
	};
	return 0;
}

int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *out)
{
	struct ibv_port_attr *a = (struct ibv_port_attr *)out; // the header's macro passes a whole one
	(void)c;
	if (port != 1)
		return EINVAL;
	a->state = IBV_PORT_ACTIVE;
	a->phys_state = 5; // LinkUp
	a->max_mtu = a->active_mtu = IBV_MTU_4096;
	a->gid_tbl_len = a->pkey_tbl_len = 1;
	a->max_msg_sz = 1u << 30;
	a->active_width = 2;  // 4 lanes
	a->active_speed = 32; // EDR
	a->link_layer = IBV_LINK_LAYER_ETHERNET;
	return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *e, size_t max, uint32_t flags, size_t size)
{
	static const uint8_t gid[16] = {[10] = 0xff, 0xff, 10, 0, 0, 1}; // ::ffff:10.0.0.1
	(void)c, (void)flags, (void)size;
	if (max < 1)
		return -EINVAL;
	memset(e, 0, sizeof *e);
	memcpy(e->gid.raw, gid, sizeof gid);
	e->port_num = 1;
	e->gid_type = IBV_GID_TYPE_ROCE_V2;
	return 1;
}

int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e)
{
	(void)c, (void)e;
	errno = EAGAIN;
	return -1;
}

void ibv_ack_async_event(struct ibv_async_event *e) { (void)e; }

// Its objects.

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);
	pd->context = c;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	struct ibv_mr *mr = calloc(1, sizeof *mr);
	(void)iova, (void)access;
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = mr->rkey = last_key += 0x100;
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct null_channel *channel = calloc(1, sizeof *channel);
	channel->base.context = c;
	channel->base.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	return &channel->base;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int n, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	struct null_cq *cq = calloc(1, sizeof *cq);
	uint32_t size = power_of_two(n);
	(void)vector;
	cq->base.context = c;
	cq->base.channel = channel;
	cq->base.cq_context = cq_context;
	cq->base.cqe = n;
	cq->completions = calloc(size, sizeof *cq->completions);
	cq->mask = size - 1;
	if (channel)
		((struct null_channel *)channel)->cq = &cq->base;
	return &cq->base;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(((struct null_cq *)cq)->completions);
	free(cq);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	uint64_t value;
	if (read(channel->fd, &value, sizeof value) < 0)
		return -1;
	*cq = ((struct null_channel *)channel)->cq;
	*cq_context = (*cq)->cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n) { (void)cq, (void)n; }

static void make_queue(struct receive_queue *q, uint32_t capacity)
{
	uint32_t size = power_of_two(capacity);
	q->receives = calloc(size, sizeof *q->receives);
	q->capacity = capacity;
	q->mask = size - 1;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
	struct null_srq *srq = calloc(1, sizeof *srq);
	srq->base.context = pd->context;
	srq->base.pd = pd;
	make_queue(&srq->queue, init->attr.max_wr);
	return &srq->base;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	(void)srq, (void)attr, (void)mask;
	return 0;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	free(((struct null_srq *)srq)->queue.receives);
	free(srq);
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	if (init->cap.max_inline_data > MAX_INLINE || last_qpn + 1 >= MAX_QP) {
		errno = EINVAL;
		return NULL;
	}
	struct null_qp *qp = calloc(1, sizeof *qp);
	qp->base.context = pd->context;
	qp->base.pd = pd;
	qp->base.send_cq = init->send_cq;
	qp->base.recv_cq = init->recv_cq;
	qp->base.srq = init->srq;
	qp->base.qp_type = init->qp_type;
	qp->base.qp_num = ++last_qpn;
	qp->init = *init;
	if (!init->srq)
		make_queue(&qp->own, init->cap.max_recv_wr);
	queue_pairs[last_qpn] = qp;
	return &qp->base;
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
	struct null_qp *qp = (struct null_qp *)base;
	struct receive_queue *q = &qp->own;
	if (mask & IBV_QP_STATE)
		base->state = qp->attr.qp_state = attr->qp_state;
	if (mask & IBV_QP_DEST_QPN && attr->dest_qp_num < MAX_QP) {
		qp->attr.dest_qp_num = attr->dest_qp_num;
		qp->peer = queue_pairs[attr->dest_qp_num];
	}
	if (base->state == IBV_QPS_ERR && !base->srq)
		while (q->tail != q->head)
			complete(base->recv_cq, q->receives[q->tail++ & q->mask].id, IBV_WC_RECV, 0, base->qp_num, IBV_WC_WR_FLUSH_ERR);
	return 0;
}

int ibv_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct null_qp *qp = (struct null_qp *)base;
	(void)mask;
	*attr = qp->attr;
	*init = qp->init;
	attr->qp_state = attr->cur_qp_state = base->state;
	attr->cap = init->cap;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *base)
{
	struct null_qp *qp = (struct null_qp *)base;
	queue_pairs[base->qp_num] = NULL;
	for (int i = 0; i < MAX_QP; i++)
		if (queue_pairs[i] && queue_pairs[i]->peer == qp)
			queue_pairs[i]->peer = NULL;
	free(qp->own.receives);
	free(qp);
	return 0;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	(void)qp;
	return NULL;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah = calloc(1, sizeof *ah);
	(void)attr;
	ah->context = pd->context;
	ah->pd = pd;
	return ah;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	free(ah);
	return 0;
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp, (void)gid, (void)lid;
	return EOPNOTSUPP;
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp, (void)gid, (void)lid;
	return EOPNOTSUPP;
}
