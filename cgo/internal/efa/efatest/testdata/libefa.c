// A libefa for tests, after the manual pages efadv_*(3). RDMA_CORE is the version that it
// pretends to be of.

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/efadv.h>

enum { READ = 1 << 0, RNR = 1 << 1, SGID = 1 << 2, WRITE = 1 << 3, UNSOLICITED = 1 << 4 };

int efadv_query_device(struct ibv_context *ctx, struct efadv_device_attr *attr, uint32_t inlen)
{
	if (ctx) // the tests have none; so this is a device, and no EFA
		return EOPNOTSUPP;
	if (inlen < offsetof(struct efadv_device_attr, max_rdma_size) + sizeof attr->max_rdma_size)
		return EINVAL;
	attr->max_sq_wr = 4096;
	attr->max_rq_wr = 32768;
	attr->max_sq_sge = 2;
	attr->max_rq_sge = 3;
	attr->inline_buf_size = 32;
	attr->max_rdma_size = 1 << 30;
	attr->device_caps = READ | RNR;
	if (RDMA_CORE >= 43)
		attr->device_caps |= SGID;
	if (RDMA_CORE >= 46)
		attr->device_caps |= WRITE;
	if (RDMA_CORE >= 52)
		attr->device_caps |= UNSOLICITED;
	return 0;
}

int efadv_query_ah(struct ibv_ah *ah, struct efadv_ah_attr *attr, uint32_t inlen)
{
	if (inlen != sizeof *attr || ah->handle == 0)
		return EINVAL;
	attr->ahn = ah->handle;
	return 0;
}

// A completion, as it waits in a queue.
struct completion {
	uint64_t id;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	uint32_t ah, bytes, flags;
	bool unsolicited;
};

enum { QUEUE = 256 };

#if RDMA_CORE >= 43
struct own_cq {
	uint64_t comp_mask;
	int (*wc_read_sgid)(struct own_cq *, union ibv_gid *);
	bool (*wc_is_unsolicited)(struct own_cq *);
};

struct queue {
	struct ibv_cq_ex ex;
	struct own_cq own;
	struct completion list[QUEUE];
	unsigned next, count;
	bool polling;
};

// The only peer, and its memory.
enum { PEER_AH = 7, PEER_QPN = 0x123, PEER_QKEY = 0x456, PEER_RKEY = 0x789, PEER_ADDR = 0xa000, PEER_SIZE = 0x1000 };

struct request {
	struct completion end;
	uint32_t rkey, bytes;
	uint64_t addr;
	bool rdma, addressed, filled;
};

// What ibv_qp_to_qp_ex looks at is behind a struct ibv_qp_ex: that is how providers tell
// libibverbs that there is one (struct verbs_qp of its driver.h).
struct pair {
	struct ibv_qp_ex ex;
	uint32_t comp_mask;
	void *xrcd;
	struct queue *sends;
	unsigned depth, inlines, entries, waiting;
	bool all_signaled, open;
	int error;
	struct request batch[QUEUE];
};

static void begin(struct ibv_qp_ex *ex)
{
	struct pair *p = (struct pair *)ex;

	if (p->open)
		abort();
	p->open = true;
	p->error = 0;
	p->waiting = 0;
}

static struct request *add(struct ibv_qp_ex *ex, enum ibv_wc_opcode opcode)
{
	struct pair *p = (struct pair *)ex;
	static struct request refused;

	if (!p->open)
		abort();
	if (!(ex->wr_flags & IBV_SEND_SIGNALED) && !p->all_signaled)
		p->error = EINVAL;
	else if (ex->wr_flags & ~(IBV_SEND_SIGNALED | IBV_SEND_INLINE))
		p->error = EINVAL;
	else if (p->sends->count - p->sends->next + p->waiting == p->depth)
		p->error = ENOMEM;
	if (p->error)
		return &refused;
	p->batch[p->waiting] = (struct request){.end = {.id = ex->wr_id, .opcode = opcode}};
	return &p->batch[p->waiting++];
}

static void wr_send(struct ibv_qp_ex *ex) { add(ex, IBV_WC_SEND); }
static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm) { add(ex, IBV_WC_SEND); }

static void remote(struct request *r, uint32_t rkey, uint64_t addr)
{
	r->rdma = true;
	r->rkey = rkey;
	r->addr = addr;
}

static void wr_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) { remote(add(ex, IBV_WC_RDMA_READ), rkey, addr); }
static void wr_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) { remote(add(ex, IBV_WC_RDMA_WRITE), rkey, addr); }
static void wr_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm) { wr_write(ex, rkey, addr); }

static void set_address(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct pair *p = (struct pair *)ex;
	struct request *r = &p->batch[p->waiting - 1];

	if (p->error)
		return;
	r->addressed = true;
	if (ah->handle != PEER_AH)
		r->end.status = IBV_WC_RESP_TIMEOUT_ERR;
	else if (qpn != PEER_QPN || qkey != PEER_QKEY)
		r->end.status = IBV_WC_REM_INV_RD_REQ_ERR;
}

static void set_entries(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	struct pair *p = (struct pair *)ex;
	struct request *r = &p->batch[p->waiting - 1];

	if (p->error)
		return;
	if (n > p->entries) {
		p->error = EINVAL;
		return;
	}
	for (size_t i = 0; i < n; i++)
		r->bytes += list[i].length;
	r->filled = true;
}

static void set_inline(struct ibv_qp_ex *ex, void *data, size_t n)
{
	struct pair *p = (struct pair *)ex;

	if (p->error)
		return;
	if (n > p->inlines)
		p->error = EINVAL;
	p->batch[p->waiting - 1].filled = true;
}

static int complete(struct ibv_qp_ex *ex)
{
	struct pair *p = (struct pair *)ex;

	if (!p->open)
		abort();
	p->open = false;
	for (unsigned i = 0; !p->error && i < p->waiting; i++) {
		struct request *r = &p->batch[i];

		if (!r->addressed || !r->filled)
			abort(); // what is not said of a request is what the last one there had
		if (r->rdma && r->end.status == IBV_WC_SUCCESS &&
		    (r->rkey != PEER_RKEY || r->addr < PEER_ADDR || r->addr + r->bytes > PEER_ADDR + PEER_SIZE))
			r->end.status = IBV_WC_REM_ACCESS_ERR;
		p->sends->list[p->sends->count++ % QUEUE] = r->end;
	}
	return p->error;
}

static void give_up(struct ibv_qp_ex *ex) { ((struct pair *)ex)->open = false; }
#else
struct pair {
	struct ibv_qp_ex ex;
};
#endif

struct ibv_qp *efadv_create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr, struct efadv_qp_init_attr *efa, uint32_t inlen)
{
	const uint64_t operations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
		(RDMA_CORE >= 46 ? IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM : 0);
	uint32_t flags; // the four bytes that were reserved
	struct pair *p;

	memcpy(&flags, (char *)efa + 12, sizeof flags);
	errno = EINVAL;
	if (inlen < 16 || efa->comp_mask || efa->driver_qp_type != EFADV_QP_DRIVER_TYPE_SRD)
		return NULL;
	if (attr->qp_type != IBV_QPT_DRIVER || attr->comp_mask != (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))
		return NULL;
	errno = EOPNOTSUPP;
	if (le32toh(flags) & ~(RDMA_CORE >= 52 ? 1 : 0) || attr->send_ops_flags & ~operations || attr->srq)
		return NULL;
	p = calloc(1, sizeof *p);
	p->ex.qp_base.qp_type = IBV_QPT_DRIVER;
	p->ex.qp_base.qp_num = 100 + le32toh(flags);
#if RDMA_CORE >= 43
	p->comp_mask = 1 << 1;
	p->sends = (struct queue *)attr->send_cq;
	p->depth = attr->cap.max_send_wr;
	p->entries = attr->cap.max_send_sge;
	p->inlines = attr->cap.max_inline_data;
	p->all_signaled = attr->sq_sig_all;
	p->ex.wr_start = begin;
	p->ex.wr_complete = complete;
	p->ex.wr_abort = give_up;
	p->ex.wr_send = wr_send;
	p->ex.wr_send_imm = wr_send_imm;
	p->ex.wr_rdma_read = wr_read;
	p->ex.wr_rdma_write = wr_write;
	p->ex.wr_rdma_write_imm = wr_write_imm;
	p->ex.wr_set_ud_addr = set_address;
	p->ex.wr_set_sge_list = set_entries;
	p->ex.wr_set_inline_data = set_inline;
#endif
	return &p->ex.qp_base;
}

#if RDMA_CORE >= 43
// The completions that every queue begins with.
static const struct completion first[] = {
	{.id = 1, .opcode = IBV_WC_RECV, .ah = 5, .bytes = 100, .flags = IBV_WC_WITH_IMM},
	{.id = 2, .opcode = IBV_WC_RECV, .ah = 0xffff, .bytes = 200},
	{.id = 99, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .ah = 6, .bytes = 1 << 20, .flags = IBV_WC_WITH_IMM, .unsolicited = true},
	{.id = 3, .opcode = IBV_WC_SEND, .ah = 77},
	{.id = 4, .status = IBV_WC_REM_INV_RD_REQ_ERR},
};

#define CURRENT(cq) ((struct queue *)(cq))->list[(((struct queue *)(cq))->next - 1) % QUEUE]

static int next_poll(struct ibv_cq_ex *cq)
{
	struct queue *q = (struct queue *)cq;

	if (!q->polling)
		abort();
	if (q->next == q->count)
		return ENOENT;
	q->next++;
	cq->wr_id = CURRENT(cq).id;
	cq->status = CURRENT(cq).status;
	return 0;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	struct queue *q = (struct queue *)cq;

	if (q->polling || attr->comp_mask)
		abort();
	q->polling = true;
	if (next_poll(cq)) {
		q->polling = false;
		return ENOENT;
	}
	return 0;
}

static void end_poll(struct ibv_cq_ex *cq)
{
	struct queue *q = (struct queue *)cq;

	if (!q->polling)
		abort();
	q->polling = false;
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq) { return CURRENT(cq).opcode; }
static uint32_t read_vendor_err(struct ibv_cq_ex *cq) { return 13; }
static uint32_t read_byte_len(struct ibv_cq_ex *cq) { return CURRENT(cq).bytes; }
static __be32 read_imm_data(struct ibv_cq_ex *cq) { return htobe32(0xabcd); }
static uint32_t read_qp_num(struct ibv_cq_ex *cq) { return 17; }
static uint32_t read_src_qp(struct ibv_cq_ex *cq) { return 18; }
static unsigned int read_wc_flags(struct ibv_cq_ex *cq) { return CURRENT(cq).flags; }
static uint32_t read_slid(struct ibv_cq_ex *cq) { return CURRENT(cq).ah; }
static uint8_t read_sl(struct ibv_cq_ex *cq) { return 3; }
static uint64_t read_ticks(struct ibv_cq_ex *cq) { return 1000 + CURRENT(cq).id; }
static uint64_t read_nanoseconds(struct ibv_cq_ex *cq) { return 1000000 + CURRENT(cq).id; }
static struct queue *queue_of(struct own_cq *own) { return (struct queue *)((char *)own - offsetof(struct queue, own)); }

static int read_sgid(struct own_cq *own, union ibv_gid *gid)
{
	if (CURRENT(queue_of(own)).ah != 0xffff)
		return -ENOENT;
	memset(gid, 0xfe, sizeof *gid);
	return 0;
}

static bool is_unsolicited(struct own_cq *own) { return CURRENT(queue_of(own)).unsolicited; }

struct ibv_cq_ex *efadv_create_cq(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr, struct efadv_cq_init_attr *efa, uint32_t inlen)
{
	// No EFA has a clock: that is for the test of what reads it.
	const uint64_t clock = RDMA_CORE >= 1000 ? IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK : 0;
	struct queue *q;

	errno = EOPNOTSUPP;
	if (inlen < 16 || efa->comp_mask || efa->wc_flags & ~(RDMA_CORE >= 52 ? 3 : 1) || attr->wc_flags & ~(IBV_WC_STANDARD_FLAGS | clock))
		return NULL;
	q = calloc(1, sizeof *q);
	q->ex.cqe = attr->cqe;
	memcpy(q->list, first, sizeof first);
	q->count = sizeof first / sizeof first[0];
	q->ex.start_poll = start_poll;
	q->ex.next_poll = next_poll;
	q->ex.end_poll = end_poll;
	q->ex.read_opcode = read_opcode;
	q->ex.read_vendor_err = read_vendor_err;
	q->ex.read_wc_flags = read_wc_flags;
	if (attr->wc_flags & IBV_WC_EX_WITH_BYTE_LEN)
		q->ex.read_byte_len = read_byte_len;
	if (attr->wc_flags & IBV_WC_EX_WITH_IMM)
		q->ex.read_imm_data = read_imm_data;
	if (attr->wc_flags & IBV_WC_EX_WITH_QP_NUM)
		q->ex.read_qp_num = read_qp_num;
	if (attr->wc_flags & IBV_WC_EX_WITH_SRC_QP)
		q->ex.read_src_qp = read_src_qp;
	if (attr->wc_flags & IBV_WC_EX_WITH_SLID)
		q->ex.read_slid = read_slid;
	if (attr->wc_flags & IBV_WC_EX_WITH_SL)
		q->ex.read_sl = read_sl;
	if (attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		q->ex.read_completion_ts = read_ticks;
	if (attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		q->ex.read_completion_wallclock_ns = read_nanoseconds;
	if (efa->wc_flags & 1)
		q->own.wc_read_sgid = read_sgid;
	if (efa->wc_flags & 2)
		q->own.wc_is_unsolicited = is_unsolicited;
	return &q->ex;
}

struct efadv_cq *efadv_cq_from_ibv_cq_ex(struct ibv_cq_ex *cq) { return (struct efadv_cq *)&((struct queue *)cq)->own; }
#endif
