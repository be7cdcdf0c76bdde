// A libibverbs with one device, for tests of what libibverbs and the kernel do when a device
// is taken away from a process. FAKE_DIR is the folder by which the test commands it:
//
//	gone    while it exists, the kernel has taken the device away
//	broken  while it exists, the device refuses to destroy objects
//	events  a FIFO: each byte is an event of the last queue pair
//	log     what was done that must not be done
//	vectors the completion vector of each completion queue, in a line each
//
// FAKE_LINK is "ethernet", or else the port is on InfiniBand. Extended completion queues
// cannot be asked for the LIDs of senders, as irdma's cannot.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../verbena_ibverbs.h"

#define EXPORT(name, version) __asm__(".symver fake_" #name "," #name "@@" version)

static struct ibv_device device = {.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "fake0"};
static struct verbs_context extended;

// Objects are never freed, so that a late use can be seen.
struct fake_qp {
	struct ibv_qp qp;
	int events, acknowledged, freed;
};
static struct fake_qp *last;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static char *path_of(const char *name, char *path)
{
	snprintf(path, 4096, "%s/%s", getenv("FAKE_DIR"), name);
	return path;
}

static int exists(const char *name)
{
	char path[4096];

	return access(path_of(name, path), F_OK) == 0;
}

static void complain(const char *what)
{
	char path[4096];
	int fd = open(path_of("log", path), O_WRONLY | O_CREAT | O_APPEND, 0600);

	dprintf(fd, "%s\n", what);
	close(fd);
}

// allowed is verbs_is_destroy_err of libibverbs.
static int allowed(void) { return getenv("RDMAV_ALLOW_DISASSOC_DESTROY") != NULL; }
static int refused(void) { return exists("gone") || exists("broken"); }
static int destroy(void) { return refused() && !allowed() ? EIO : 0; }

struct ibv_device **fake_ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof *list);

	snprintf(device.dev_name, sizeof device.dev_name, "%s", getenv("FAKE_UVERBS"));
	list[0] = &device;
	*count = 1;
	return list;
}
EXPORT(ibv_get_device_list, "IBVERBS_1.1");

void fake_ibv_free_device_list(struct ibv_device **list) { free(list); }
EXPORT(ibv_free_device_list, "IBVERBS_1.1");

uint64_t fake_ibv_get_device_guid(struct ibv_device *d) { return 1; }
EXPORT(ibv_get_device_guid, "IBVERBS_1.1");

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc) { return 0; }
static int req_notify_cq(struct ibv_cq *cq, int solicited) { return 0; }

static void note_vector(int vector)
{
	char path[4096];
	int fd = open(path_of("vectors", path), O_WRONLY | O_CREAT | O_APPEND, 0600);

	dprintf(fd, "%d\n", vector);
	close(fd);
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *init)
{
	struct ibv_cq_ex *cq;

	if (init->wc_flags & (IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	cq = calloc(1, sizeof *cq);
	cq->context = c;
	cq->channel = init->channel;
	cq->cqe = init->cqe;
	if (cq->channel)
		cq->channel->refcnt++;
	note_vector(init->comp_vector);
	return cq;
}

static int query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *a, size_t size)
{
	a->completion_timestamp_mask = UINT64_MAX;
	a->hca_core_clock = 1000;
	return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw = calloc(1, sizeof *mw);

	mw->context = pd->context;
	mw->pd = pd;
	mw->type = type;
	return mw;
}

static int dealloc_mw(struct ibv_mw *mw) { return destroy(); }

struct ibv_context *fake_ibv_open_device(struct ibv_device *d)
{
	struct ibv_context *c = &extended.context;
	char path[4096];

	extended.sz = sizeof extended;
	extended.create_cq_ex = create_cq_ex;
	extended.query_device_ex = query_device_ex;
	c->abi_compat = __VERBS_ABI_IS_EXTENDED;
	c->device = d;
	c->num_comp_vectors = 4;
	c->async_fd = open(path_of("events", path), O_RDWR | O_CLOEXEC);
	c->ops.poll_cq = poll_cq;
	c->ops.req_notify_cq = req_notify_cq;
	c->ops.alloc_mw = alloc_mw;
	c->ops.dealloc_mw = dealloc_mw;
	return c;
}
EXPORT(ibv_open_device, "IBVERBS_1.1");

int fake_ibv_close_device(struct ibv_context *c)
{
	close(c->async_fd);
	return 0;
}
EXPORT(ibv_close_device, "IBVERBS_1.1");

int fake_ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	memset(a, 0, sizeof *a);
	a->max_qp = a->max_qp_wr = a->max_sge = a->max_cq = a->max_cqe = a->max_mr = a->max_pd = 64;
	a->max_srq = a->max_srq_wr = a->max_srq_sge = a->max_ah = a->max_mw = 64;
	a->phys_port_cnt = 1;
	a->max_mr_size = 1 << 30;
	a->device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
	return 0;
}
EXPORT(ibv_query_device, "IBVERBS_1.1");

int fake_ibv_query_port(struct ibv_context *c, uint8_t port, void *to)
{
	struct ibv_port_attr *a = to;

	a->state = IBV_PORT_ACTIVE;
	a->gid_tbl_len = 1;
	a->link_layer = IBV_LINK_LAYER_INFINIBAND;
	if (getenv("FAKE_LINK"))
		a->link_layer = IBV_LINK_LAYER_ETHERNET;
	return 0;
}
EXPORT(ibv_query_port, "IBVERBS_1.1");

ssize_t fake__ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *e, size_t max, uint32_t flags, size_t size)
{
	return exists("gone") ? -EIO : 0;
}
EXPORT(_ibv_query_gid_table, "IBVERBS_1.11");

int fake_ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *event)
{
	char byte;

	if (read(c->async_fd, &byte, 1) != 1)
		return -1;
	pthread_mutex_lock(&mutex);
	if (last->freed)
		complain("an event of a queue pair that was freed was fetched");
	last->events++;
	pthread_mutex_unlock(&mutex);
	event->event_type = IBV_EVENT_QP_FATAL;
	event->element.qp = &last->qp;
	return 0;
}
EXPORT(ibv_get_async_event, "IBVERBS_1.1");

void fake_ibv_ack_async_event(struct ibv_async_event *event)
{
	struct fake_qp *q = (struct fake_qp *)event->element.qp;

	pthread_mutex_lock(&mutex);
	if (q->freed)
		complain("an event of a queue pair that was freed was acknowledged");
	q->acknowledged++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mutex);
}
EXPORT(ibv_ack_async_event, "IBVERBS_1.1");

struct ibv_pd *fake_ibv_alloc_pd(struct ibv_context *c)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);

	pd->context = c;
	return pd;
}
EXPORT(ibv_alloc_pd, "IBVERBS_1.1");

int fake_ibv_dealloc_pd(struct ibv_pd *pd) { return destroy(); }
EXPORT(ibv_dealloc_pd, "IBVERBS_1.1");

struct ibv_mr *fake_ibv_reg_mr_iova2(struct ibv_pd *pd, void *a, size_t n, uint64_t iova, unsigned int access)
{
	struct ibv_mr *mr = calloc(1, sizeof *mr);

	mr->context = pd->context;
	mr->pd = pd;
	return mr;
}
EXPORT(ibv_reg_mr_iova2, "IBVERBS_1.8");

int fake_ibv_dereg_mr(struct ibv_mr *mr) { return destroy(); }
EXPORT(ibv_dereg_mr, "IBVERBS_1.1");

struct ibv_comp_channel *fake_ibv_create_comp_channel(struct ibv_context *c)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof *channel);
	char path[4096];

	channel->context = c;
	channel->fd = open(path_of("completions", path), O_RDWR | O_CLOEXEC);
	return channel;
}
EXPORT(ibv_create_comp_channel, "IBVERBS_1.0");

int fake_ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	if (channel->refcnt)
		return EBUSY;
	close(channel->fd);
	return 0;
}
EXPORT(ibv_destroy_comp_channel, "IBVERBS_1.0");

struct ibv_cq *fake_ibv_create_cq(struct ibv_context *c, int entries, void *own, struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *cq = calloc(1, sizeof *cq);

	cq->context = c;
	cq->channel = channel;
	cq->cqe = entries;
	note_vector(vector);
	if (channel)
		channel->refcnt++;
	return cq;
}
EXPORT(ibv_create_cq, "IBVERBS_1.1");

int fake_ibv_destroy_cq(struct ibv_cq *cq)
{
	int ret = destroy();

	if (ret == 0 && cq->channel)
		cq->channel->refcnt--;
	return ret;
}
EXPORT(ibv_destroy_cq, "IBVERBS_1.1");

int fake_ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **own)
{
	errno = EAGAIN;
	return -1;
}
EXPORT(ibv_get_cq_event, "IBVERBS_1.1");

void fake_ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n) {}
EXPORT(ibv_ack_cq_events, "IBVERBS_1.1");

struct ibv_srq *fake_ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
	struct ibv_srq *srq = calloc(1, sizeof *srq);

	srq->context = pd->context;
	return srq;
}
EXPORT(ibv_create_srq, "IBVERBS_1.1");

int fake_ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *a, int mask) { return 0; }
EXPORT(ibv_modify_srq, "IBVERBS_1.1");

int fake_ibv_destroy_srq(struct ibv_srq *srq) { return destroy(); }
EXPORT(ibv_destroy_srq, "IBVERBS_1.1");

struct ibv_qp *fake_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	static int number = 16;
	struct fake_qp *q = calloc(1, sizeof *q);

	q->qp.context = pd->context;
	q->qp.qp_num = ++number;
	q->qp.qp_type = init->qp_type;
	last = q;
	return &q->qp;
}
EXPORT(ibv_create_qp, "IBVERBS_1.1");

int fake_ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask) { return 0; }
EXPORT(ibv_modify_qp, "IBVERBS_1.1");

int fake_ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init) { return 0; }
EXPORT(ibv_query_qp, "IBVERBS_1.1");

int fake_ibv_destroy_qp(struct ibv_qp *qp)
{
	struct fake_qp *q = (struct fake_qp *)qp;

	if (refused()) {
		if (!allowed())
			return EIO;
		q->freed = 1; // without waiting
		return 0;
	}
	pthread_mutex_lock(&mutex);
	while (q->events != q->acknowledged)
		pthread_cond_wait(&changed, &mutex);
	q->freed = 1;
	pthread_mutex_unlock(&mutex);
	return 0;
}
EXPORT(ibv_destroy_qp, "IBVERBS_1.1");

struct ibv_qp_ex *fake_ibv_qp_to_qp_ex(struct ibv_qp *qp) { return NULL; }
EXPORT(ibv_qp_to_qp_ex, "IBVERBS_1.6");

struct ibv_ah *fake_ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a)
{
	struct ibv_ah *ah = calloc(1, sizeof *ah);

	ah->context = pd->context;
	ah->pd = pd;
	return ah;
}
EXPORT(ibv_create_ah, "IBVERBS_1.1");

int fake_ibv_destroy_ah(struct ibv_ah *ah) { return destroy(); }
EXPORT(ibv_destroy_ah, "IBVERBS_1.1");

int fake_ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) { return 0; }
EXPORT(ibv_attach_mcast, "IBVERBS_1.1");

int fake_ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) { return destroy(); }
EXPORT(ibv_detach_mcast, "IBVERBS_1.1");
