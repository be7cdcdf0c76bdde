// Cases that rdma-core's tests do not cover. Each is a run of this program with its name.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <infiniband/efadv.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

// CHECK ends the process if a condition does not hold.
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not so: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno)); \
			_exit(1); \
		} \
	} while (0)

#define SIZE 4096
#define DEPTH 16
#define SEND_DEPTH (2 * DEPTH) // the room for send requests of a queue pair that was made for DEPTH

static struct ibv_context *open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

// end is one end of a connection.
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq; // NULL: none
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *buffer;
};

// address is what an end tells its peer.
struct address {
	union ibv_gid gid;
	uint32_t qpn, rkey;
	uint64_t buffer;
};

// open_end makes the objects of an end. channel is NULL for a channel of its own.
static struct end open_end(struct ibv_context *context, struct ibv_comp_channel *channel, bool shared_receives)
{
	struct end e = {.context = context};
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 16},
	};

	CHECK(e.pd = ibv_alloc_pd(context));
	CHECK(e.channel = channel ? channel : ibv_create_comp_channel(context));
	CHECK(e.cq = ibv_create_cq(context, 4 * DEPTH, NULL, e.channel, 0));
	if (shared_receives) {
		struct ibv_srq_init_attr attr = {.attr = {.max_wr = DEPTH, .max_sge = 1}};

		CHECK(e.srq = ibv_create_srq(e.pd, &attr));
	}
	init.send_cq = init.recv_cq = e.cq;
	init.srq = e.srq;
	CHECK(e.qp = ibv_create_qp(e.pd, &init));
	CHECK(e.buffer = calloc(1, SIZE));
	CHECK(e.mr = ibv_reg_mr(e.pd, e.buffer, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND));
	return e;
}

static struct address address_of(const struct end *e)
{
	struct address a = {.qpn = e->qp->qp_num, .rkey = e->mr->rkey, .buffer = (uintptr_t)e->buffer};

	CHECK(!ibv_query_gid(e->context, 1, 0, &a.gid));
	return a;
}

static void initialise(struct end *e)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};

	CHECK(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
}

static void connect_with(struct end *e, struct address peer, uint8_t timeout)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer.gid, .hop_limit = 64}},
	};

	initialise(e);
	CHECK(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = timeout, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void connect_to(struct end *e, struct address peer) { connect_with(e, peer, 15); }

static void connect_ends(struct end *a, struct end *b)
{
	connect_to(a, address_of(b));
	connect_to(b, address_of(a));
}

static struct ibv_sge sge_of(const struct end *e, size_t length)
{
	return (struct ibv_sge){.addr = (uintptr_t)e->buffer, .length = length, .lkey = e->mr->lkey};
}

static void post_receive(struct end *e, uint64_t id)
{
	struct ibv_sge sge = sge_of(e, SIZE);
	struct ibv_recv_wr *bad, wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1};

	CHECK(!(e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad)));
}

static void post_send_with(struct end *e, uint64_t id, unsigned int flags)
{
	struct ibv_sge sge = sge_of(e, 8);
	struct ibv_send_wr *bad, wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | flags};

	CHECK(!ibv_post_send(e->qp, &wr, &bad));
}

static void post_send(struct end *e, uint64_t id) { post_send_with(e, id, 0); }

static struct ibv_wc await(struct end *e)
{
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(e->cq, 1, &wc)))
		;
	CHECK(n == 1);
	return wc;
}

// exchange sends a message from a to b.
static void exchange(struct end *a, struct end *b)
{
	memcpy(a->buffer, "message", 8);
	memset(b->buffer, 0, 8);
	post_receive(b, 1);
	post_send(a, 2);
	CHECK(await(a).status == IBV_WC_SUCCESS);
	CHECK(await(b).status == IBV_WC_SUCCESS);
	CHECK(strcmp(b->buffer, "message") == 0);
}

// close_end closes all but the context, and the channel if it is another's.
static void close_end(struct end *e, bool own_channel)
{
	CHECK(!ibv_destroy_qp(e->qp));
	CHECK(!e->srq || !ibv_destroy_srq(e->srq));
	CHECK(!ibv_destroy_cq(e->cq));
	CHECK(!own_channel || !ibv_destroy_comp_channel(e->channel));
	CHECK(!ibv_dereg_mr(e->mr));
	CHECK(!ibv_dealloc_pd(e->pd));
	free(e->buffer);
}

static void close_all(struct ibv_context *context, struct end *a, struct end *b)
{
	close_end(a, true);
	close_end(b, true);
	CHECK(!ibv_close_device(context));
}

static void wait_for(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static struct ibv_dm *alloc_dm(struct ibv_context *context, size_t length, uint32_t log_align, uint32_t mask)
{
	struct ibv_alloc_dm_attr attr = {.length = length, .log_align_req = log_align, .comp_mask = mask};

	return ibv_alloc_dm(context, &attr);
}

// A child that was forked after the first use is refused with EPERM. One that is executed works.
static void fork_after_use(void)
{
	struct ibv_context *context = open_first();
	struct ibv_device *device = context->device;
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	pid_t child;

	connect_ends(&a, &b);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		struct ibv_wc wc;
		struct ibv_recv_wr *bad, wr = {0};
		struct ibv_device_attr attr;
		struct ibv_dm *dm;

		CHECK(!ibv_query_device(context, &attr) && attr.max_qp > 0 && (dm = alloc_dm(context, 4096, 0, 0)) && !ibv_free_dm(dm));
		CHECK(!ibv_get_device_list(NULL) && errno == EPERM);
		CHECK(!ibv_open_device(device) && errno == EPERM);
		CHECK(!ibv_alloc_pd(context) && errno == EPERM);
		CHECK(!ibv_create_cq(context, 1, NULL, NULL, 0) && errno == EPERM);
		CHECK(ibv_post_recv(a.qp, &wr, &bad) == EPERM && bad == &wr);
		CHECK(ibv_poll_cq(a.cq, 1, &wc) < 0);
		CHECK(ibv_dereg_mr(a.mr) == EPERM);
		CHECK(ibv_destroy_qp(a.qp) == EPERM);
		_exit(0);
	}
	wait_for(child);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		execl("/proc/self/exe", "cases", "exchange", NULL);
		_exit(1);
	}
	wait_for(child);
	exchange(&a, &b);
	close_all(context, &a, &b);
}

static void simple_exchange(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, true);

	connect_ends(&a, &b);
	exchange(&a, &b);
	close_all(context, &a, &b);
}

// A process may fork before the first use, and both may use the verbs.
static void fork_before_use(void)
{
	pid_t child = fork();

	CHECK(child >= 0);
	simple_exchange();
	if (child)
		wait_for(child);
}

// No device is listed. The caller looks for the message.
static void wrong_devices(void)
{
	for (int i = 0; i < 2; i++) {
		int count = 7;
		struct ibv_device **list = ibv_get_device_list(&count);

		CHECK(count == 0 && (!list || !list[0]));
		ibv_free_device_list(list);
	}
}

// A device closes with everything on it, and can be opened again.
static void leak(void)
{
	for (int i = 0; i < 3; i++) {
		struct ibv_context *context = open_first();
		struct end a = open_end(context, NULL, false), b = open_end(context, NULL, true);
		struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};

		connect_ends(&a, &b);
		exchange(&a, &b);
		post_receive(&a, 1);
		post_receive(&b, 2);
		post_send(&a, 3); // and is not polled
		CHECK(!ibv_query_gid(context, 1, 0, &attr.grh.dgid));
		CHECK(ibv_create_ah(a.pd, &attr));
		CHECK(ibv_alloc_mw(a.pd, IBV_MW_TYPE_1));
		CHECK(!ibv_req_notify_cq(a.cq, 0));
		CHECK(!ibv_close_device(context));
	}
	simple_exchange();
}

// The wrong order of closing is refused.
static void busy(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, true), b = open_end(context, NULL, false);
	struct ibv_mw *mw;
	struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED};
	struct ibv_parent_domain_init_attr attr = {.pd = b.pd};
	struct ibv_pd *parent;

	connect_ends(&a, &b);
	CHECK(ibv_dealloc_pd(a.pd) == EBUSY);
	CHECK(ibv_destroy_cq(a.cq) == EBUSY);
	CHECK(ibv_destroy_srq(a.srq) == EBUSY);
	CHECK(ibv_destroy_comp_channel(a.channel) == EBUSY);
	CHECK(mw = ibv_alloc_mw(a.pd, IBV_MW_TYPE_1));
	bind.bind_info = (struct ibv_mw_bind_info){.mr = a.mr, .addr = (uintptr_t)a.buffer, .length = SIZE, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
	CHECK(!ibv_bind_mw(a.qp, mw, &bind));
	CHECK(await(&a).status == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(a.mr) == EBUSY);
	CHECK(!ibv_dealloc_mw(mw));
	CHECK(parent = ibv_alloc_parent_domain(context, &attr));
	CHECK(!ibv_dereg_mr(b.mr) && !ibv_destroy_qp(b.qp));
	CHECK(ibv_dealloc_pd(b.pd) == EBUSY);
	CHECK(!ibv_dealloc_pd(parent));
	CHECK(!ibv_dealloc_pd(b.pd));
	CHECK(!ibv_destroy_cq(b.cq) && !ibv_destroy_comp_channel(b.channel));
	free(b.buffer);
	close_end(&a, true);
	CHECK(!ibv_close_device(context));
}

// destroyer destroys an object in a thread of its own.
struct destroyer {
	pthread_t thread;
	void *object;
	int (*destroy)(void *object);
	int result;
	bool done;
};

static void *run_destroyer(void *given)
{
	struct destroyer *d = given;

	d->result = d->destroy(d->object);
	__atomic_store_n(&d->done, true, __ATOMIC_RELEASE);
	return NULL;
}

static void start_destroyer(struct destroyer *d)
{
	CHECK(!pthread_create(&d->thread, NULL, run_destroyer, d));
	usleep(100000); // time in which to do what is wrong
	CHECK(!__atomic_load_n(&d->done, __ATOMIC_ACQUIRE));
}

static void end_destroyer(struct destroyer *d)
{
	CHECK(!pthread_join(d->thread, NULL));
	CHECK(d->done && d->result == 0);
}

static int destroy_cq(void *cq) { return ibv_destroy_cq(cq); }
static int destroy_qp(void *qp) { return ibv_destroy_qp(qp); }
static int destroy_srq(void *srq) { return ibv_destroy_srq(srq); }

// Destroying an object waits until its events are acknowledged.
static void acknowledge(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, true);
	struct ibv_srq_attr limit = {.srq_limit = 2};
	struct ibv_async_event of_srq, of_qp;
	struct ibv_cq *cq;
	void *cq_context;

	connect_ends(&a, &b);
	// An event of each kind.
	CHECK(!ibv_req_notify_cq(b.cq, 0));
	post_receive(&b, 1);
	post_receive(&b, 2);
	CHECK(!ibv_modify_srq(b.srq, &limit, IBV_SRQ_LIMIT));
	post_send(&a, 3);
	CHECK(await(&a).status == IBV_WC_SUCCESS);
	CHECK(!ibv_get_cq_event(b.channel, &cq, &cq_context) && cq == b.cq);
	CHECK(await(&b).status == IBV_WC_SUCCESS);
	CHECK(!ibv_get_async_event(context, &of_srq));
	CHECK(of_srq.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && of_srq.element.srq == b.srq);
	// A request beyond the peer's memory is an error of access there.
	struct ibv_sge sge = sge_of(&a, 8);
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = (uintptr_t)b.buffer + SIZE, .rkey = b.mr->rkey},
	};
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	CHECK(await(&a).status == IBV_WC_REM_ACCESS_ERR);
	do {
		CHECK(!ibv_get_async_event(context, &of_qp));
		if (of_qp.element.qp != b.qp || of_qp.event_type != IBV_EVENT_QP_ACCESS_ERR)
			ibv_ack_async_event(&of_qp);
	} while (of_qp.element.qp != b.qp || of_qp.event_type != IBV_EVENT_QP_ACCESS_ERR);

	struct destroyer qp = {.object = b.qp, .destroy = destroy_qp}, srq = {.object = b.srq, .destroy = destroy_srq}, of_cq = {.object = b.cq, .destroy = destroy_cq};
	start_destroyer(&qp);
	ibv_ack_async_event(&of_qp);
	end_destroyer(&qp);
	start_destroyer(&srq);
	ibv_ack_async_event(&of_srq);
	end_destroyer(&srq);
	start_destroyer(&of_cq);
	ibv_ack_cq_events(b.cq, 1);
	end_destroyer(&of_cq);
	CHECK(!ibv_destroy_comp_channel(b.channel));
	CHECK(!ibv_dereg_mr(b.mr) && !ibv_dealloc_pd(b.pd));
	free(b.buffer);
	close_end(&a, true);
	CHECK(!ibv_close_device(context));
}

static void set_nonblocking(int fd)
{
	CHECK(!fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
}

static bool readable(int fd, int timeout)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, timeout) == 1;
}

static void expect_no_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *cq_context;

	errno = 0;
	CHECK(ibv_get_cq_event(channel, &cq, &cq_context) == -1 && errno == EAGAIN);
	CHECK(!readable(channel->fd, 0));
}

// Descriptors that do not block report EAGAIN, and can be polled.
static void nonblocking(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	struct ibv_async_event event;
	struct ibv_cq *cq;
	void *cq_context;

	connect_ends(&a, &b);
	set_nonblocking(b.channel->fd);
	set_nonblocking(context->async_fd);
	CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
	for (int i = 0; i < 10; i++) {
		expect_no_event(b.channel);
		CHECK(!ibv_req_notify_cq(b.cq, 0));
		post_receive(&b, 1);
		post_send(&a, 2);
		CHECK(readable(b.channel->fd, -1));
		CHECK(!ibv_get_cq_event(b.channel, &cq, &cq_context) && cq == b.cq);
		ibv_ack_cq_events(cq, 1);
		CHECK(await(&b).status == IBV_WC_SUCCESS);
		CHECK(await(&a).status == IBV_WC_SUCCESS);
	}
	expect_no_event(b.channel);
	close_all(context, &a, &b);
}

// expect_event reads the one event that the channel holds.
static void expect_event(struct ibv_comp_channel *channel, struct ibv_cq *of)
{
	struct ibv_cq *cq;
	void *cq_context;

	CHECK(!ibv_get_cq_event(channel, &cq, &cq_context) && cq == of);
	ibv_ack_cq_events(cq, 1);
	expect_no_event(channel);
}

// deliver sends a message from a to b, whose completion at b stays unread.
static void deliver(struct end *a, struct end *b, unsigned int flags)
{
	post_receive(b, 1);
	post_send_with(a, 2, flags);
	CHECK(await(a).status == IBV_WC_SUCCESS);
}

// arm asks for a notification, and checks whether the event comes at once.
static void arm(struct end *e, bool solicited_only, bool at_once)
{
	CHECK(!ibv_req_notify_cq(e->cq, solicited_only));
	if (at_once)
		expect_event(e->channel, e->cq);
	else
		expect_no_event(e->channel);
}

// A request for a notification raises its event at once for completions that are there, unless an
// event has come since. If only solicited ones count, so do failed ones.
static void arm_with_completions(struct ibv_context *context, bool shared_receives)
{
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, shared_receives);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	connect_ends(&a, &b);
	set_nonblocking(b.channel->fd);
	deliver(&a, &b, 0);
	CHECK(await(&b).status == IBV_WC_SUCCESS);
	arm(&b, false, false); // the queue was read to its end
	deliver(&a, &b, 0);
	expect_event(b.channel, b.cq);
	arm(&b, false, false); // the event has come before the completion is read
	CHECK(await(&b).status == IBV_WC_SUCCESS);
	deliver(&a, &b, 0);
	expect_event(b.channel, b.cq);

	deliver(&a, &b, 0);
	arm(&b, true, false);
	arm(&b, false, true);
	deliver(&a, &b, IBV_SEND_SOLICITED);
	expect_no_event(b.channel); // nothing is armed
	deliver(&a, &b, 0);
	for (int i = 0; i < 2; i++) // the solicited one is not the last, and not the first
		CHECK(await(&b).status == IBV_WC_SUCCESS);
	arm(&b, true, true);
	for (int i = 0; i < 2; i++)
		CHECK(await(&b).status == IBV_WC_SUCCESS);
	arm(&b, false, false);
	arm(&b, true, false); // for both
	deliver(&a, &b, 0);
	expect_event(b.channel, b.cq);
	CHECK(await(&b).status == IBV_WC_SUCCESS);
	if (!shared_receives) {
		post_receive(&b, 3);
		CHECK(!ibv_modify_qp(b.qp, &attr, IBV_QP_STATE));
		arm(&b, true, true);
		CHECK(await(&b).status == IBV_WC_WR_FLUSH_ERR);
	}
	arm(&b, true, false);
	close_end(&a, true);
	close_end(&b, true);
}

// extend gives an end an extended queue, and another queue pair for it.
static struct ibv_cq_ex *extend(struct end *e)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = 4 * DEPTH, .channel = e->channel, .wc_flags = IBV_WC_STANDARD_FLAGS};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(e->context, &attr);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .srq = e->srq, .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
	};

	CHECK(cq && !ibv_destroy_qp(e->qp) && !ibv_destroy_cq(e->cq));
	init.send_cq = init.recv_cq = e->cq = ibv_cq_ex_to_cq(cq);
	CHECK(e->qp = ibv_create_qp(e->pd, &init));
	return cq;
}

// So does one for an extended queue, which holds what it took from the device.
static void arm_extended(struct ibv_context *context)
{
	struct ibv_poll_cq_attr none = {0};
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	struct ibv_cq_ex *cq = extend(&b);

	connect_ends(&a, &b);
	set_nonblocking(b.channel->fd);
	for (int i = 0; i < 3; i++)
		deliver(&a, &b, IBV_SEND_SOLICITED);
	for (int i = 0; i < 3; i++) {
		arm(&b, i & 1, true);
		CHECK(!ibv_start_poll(cq, &none));
		ibv_end_poll(cq);
	}
	arm(&b, false, false);
	deliver(&a, &b, 0);
	expect_event(b.channel, b.cq);
	close_end(&a, true);
	close_end(&b, true);
}

static void arm_pending(void)
{
	struct ibv_context *context = open_first();

	arm_with_completions(context, false);
	arm_with_completions(context, true);
	arm_extended(context);
	CHECK(!ibv_close_device(context));
}

static void wait_for_completion(struct end *e)
{
	struct ibv_cq *cq;
	void *cq_context;

	CHECK(!ibv_get_cq_event(e->channel, &cq, &cq_context) && cq == e->cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(await(e).status == IBV_WC_SUCCESS);
}

#define WAITS 2000

static _Atomic int receives_posted;

static void *send_and_wait(void *sender)
{
	struct end *a = sender;

	for (int i = 0; i < WAITS; i++) {
		while (receives_posted <= i)
			sched_yield();
		CHECK(!ibv_req_notify_cq(a->cq, 0));
		post_send(a, i);
		wait_for_completion(a);
	}
	return NULL;
}

// Threads that wait for events get all of them, though they poll for a while before they sleep. So
// does a thread that then uses the descriptor.
static void waiting_threads(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	pthread_t sender;

	connect_ends(&a, &b);
	CHECK(!pthread_create(&sender, NULL, send_and_wait, &a));
	for (int i = 0; i < WAITS; i++) {
		CHECK(!ibv_req_notify_cq(b.cq, 0));
		post_receive(&b, i);
		receives_posted++;
		wait_for_completion(&b);
	}
	CHECK(!pthread_join(sender, NULL));
	for (int i = 0; i < 50; i++) {
		CHECK(!ibv_req_notify_cq(b.cq, 0));
		post_receive(&b, i);
		post_send(&a, i);
		CHECK(readable(b.channel->fd, -1));
		wait_for_completion(&b);
		CHECK(await(&a).status == IBV_WC_SUCCESS);
	}
	CHECK(!ibv_req_notify_cq(b.cq, 0));
	close_all(context, &a, &b);
}

// An event of a queue that is destroyed does not stay in a channel that others use.
static void shared_channel(void)
{
	struct ibv_context *context = open_first();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct end a = open_end(context, channel, false), b = open_end(context, channel, false);
	struct ibv_cq *cq;
	void *cq_context;

	connect_ends(&a, &b);
	set_nonblocking(channel->fd);
	CHECK(!ibv_req_notify_cq(a.cq, 0));
	CHECK(!ibv_req_notify_cq(b.cq, 0));
	post_receive(&b, 1);
	post_send(&a, 2);
	CHECK(await(&a).status == IBV_WC_SUCCESS);
	CHECK(await(&b).status == IBV_WC_SUCCESS);
	close_end(&a, false);
	CHECK(readable(channel->fd, 0));
	CHECK(!ibv_get_cq_event(channel, &cq, &cq_context) && cq == b.cq);
	ibv_ack_cq_events(cq, 1);
	expect_no_event(channel);
	close_end(&b, true);
	CHECK(!ibv_close_device(context));
}

// bad_wr points to the first request that was not posted. Those before it are done.
static void bad_request(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, true);
	struct ibv_sge from[] = {sge_of(&a, 8), sge_of(&a, 8)}, to[] = {sge_of(&b, 8), sge_of(&b, 8)};
	struct ibv_send_wr *bad_send, sends[SEND_DEPTH + 1];
	struct ibv_recv_wr *bad_receive, receives[SEND_DEPTH + 1];

	connect_ends(&a, &b);
	for (int wrong = 0; wrong < 5; wrong++) {
		for (int i = 0; i < 5; i++) {
			sends[i] = (struct ibv_send_wr){.wr_id = i, .next = i < 4 ? &sends[i + 1] : NULL, .sg_list = from, .num_sge = 1 + (i == wrong), .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
			receives[i] = (struct ibv_recv_wr){.wr_id = i, .next = i < 4 ? &receives[i + 1] : NULL, .sg_list = to, .num_sge = 1 + (i == wrong)};
		}
		CHECK(ibv_post_srq_recv(b.srq, receives, &bad_receive) == EINVAL && bad_receive == &receives[wrong]);
		CHECK(ibv_post_send(a.qp, sends, &bad_send) == EINVAL && bad_send == &sends[wrong]);
		for (int i = 0; i < wrong; i++) {
			struct ibv_wc sent = await(&a), received = await(&b);

			CHECK(sent.wr_id == (uint64_t)i && sent.status == IBV_WC_SUCCESS);
			CHECK(received.wr_id == (uint64_t)i && received.status == IBV_WC_SUCCESS);
		}
	}
	CHECK(ibv_post_recv(a.qp, receives, &bad_receive) == EINVAL && bad_receive == &receives[4]);
	receives[0].num_sge = -1;
	CHECK(ibv_post_srq_recv(b.srq, receives, &bad_receive) == EINVAL && bad_receive == &receives[0]);
	sends[0].num_sge = 1 << 30;
	CHECK(ibv_post_send(a.qp, sends, &bad_send) == EINVAL && bad_send == &sends[0]);
	// More than there is room for.
	struct end c = open_end(context, NULL, true), d = open_end(context, NULL, false);
	struct ibv_qp_attr now;
	struct ibv_qp_init_attr made;

	CHECK(!ibv_query_qp(c.qp, &now, IBV_QP_CAP, &made) && made.cap.max_send_wr == SEND_DEPTH);
	connect_ends(&c, &d);
	for (int i = 0; i <= SEND_DEPTH; i++) {
		sends[i] = (struct ibv_send_wr){.next = i < SEND_DEPTH ? &sends[i + 1] : NULL, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
		receives[i] = (struct ibv_recv_wr){.next = i < SEND_DEPTH ? &receives[i + 1] : NULL};
	}
	CHECK(ibv_post_recv(d.qp, receives, &bad_receive) == ENOMEM && bad_receive == &receives[DEPTH]);
	CHECK(ibv_post_srq_recv(c.srq, receives, &bad_receive) == ENOMEM && bad_receive == &receives[DEPTH]);
	CHECK(ibv_post_send(c.qp, sends, &bad_send) == ENOMEM && bad_send == &sends[SEND_DEPTH]);
	close_end(&c, true);
	close_end(&d, true);
	close_all(context, &a, &b);
}

// When a process is killed, its peer gets errors.
static void killed(void)
{
	int sockets[2];
	pid_t child;
	struct address peer, own;
	struct ibv_context *context;
	struct end e;
	enum ibv_wc_status status = IBV_WC_SUCCESS;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	child = fork();
	CHECK(child >= 0);
	context = open_first();
	e = open_end(context, NULL, false);
	own = address_of(&e);
	CHECK(write(sockets[!child], &own, sizeof own) == sizeof own);
	CHECK(read(sockets[!child], &peer, sizeof peer) == sizeof peer);
	connect_to(&e, peer);
	CHECK(write(sockets[!child], "", 1) == 1);
	CHECK(read(sockets[!child], &(char){0}, 1) == 1);
	if (!child)
		pause();
	for (int sent = 0; status == IBV_WC_SUCCESS; sent++) {
		struct ibv_sge sge = sge_of(&e, SIZE);
		struct ibv_send_wr *bad, wr = {
			.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {.remote_addr = peer.buffer, .rkey = peer.rkey},
		};

		if (sent == 1000)
			CHECK(!kill(child, SIGKILL));
		CHECK(!ibv_post_send(e.qp, &wr, &bad));
		status = await(&e).status;
	}
	kill(child, SIGKILL); // if the errors came earlier
	CHECK(status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_RESP_TIMEOUT_ERR);
	post_receive(&e, 1);
	CHECK(await(&e).status == IBV_WC_WR_FLUSH_ERR);
	CHECK(waitpid(child, &(int){0}, 0) == child);
	close_end(&e, true);
	CHECK(!ibv_close_device(context));
}

// Packets are lost, and by the program's time-out, hours would pass until they are repeated.
static void lossy(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);

	connect_with(&a, address_of(&b), 31);
	connect_with(&b, address_of(&a), 31);
	for (int i = 0; i < 2000; i++) {
		post_receive(&b, i);
		post_send(&a, i);
		CHECK(await(&a).status == IBV_WC_SUCCESS);
		CHECK(await(&b).status == IBV_WC_SUCCESS);
	}
	close_end(&a, true);
	close_end(&b, true);
	CHECK(!ibv_close_device(context));
}

// A queue pair is reset between start_poll and end_poll of an extended queue, which drops the
// completions that follow. Another is destroyed after end_poll, which drops those that were not read.
static void reset_while_reading(void)
{
	struct ibv_context *context = open_first();
	struct ibv_cq_init_attr_ex cq_attr = {.cqe = DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS};
	struct ibv_cq_ex *cq;
	struct ibv_pd *pd;
	struct ibv_poll_cq_attr none = {0};
	struct ibv_qp *qps[2];
	struct ibv_qp_attr attr;
	struct ibv_recv_wr *bad;

	CHECK(cq = ibv_create_cq_ex(context, &cq_attr));
	CHECK(pd = ibv_alloc_pd(context));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .cap = {.max_recv_wr = 4}};
		struct end e = {.qp = ibv_create_qp(pd, &init)};

		CHECK(qps[i] = e.qp);
		initialise(&e);
	}
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < 2; k++) {
			struct ibv_recv_wr wr = {.wr_id = 10 * k + i};

			CHECK(!ibv_post_recv(qps[k], &wr, &bad));
		}
	attr.qp_state = IBV_QPS_ERR;
	CHECK(!ibv_modify_qp(qps[0], &attr, IBV_QP_STATE));
	CHECK(!ibv_modify_qp(qps[1], &attr, IBV_QP_STATE));
	CHECK(!ibv_start_poll(cq, &none));
	CHECK(cq->wr_id == 0 && cq->status == IBV_WC_WR_FLUSH_ERR && ibv_wc_read_qp_num(cq) == qps[0]->qp_num);
	attr.qp_state = IBV_QPS_RESET;
	CHECK(!ibv_modify_qp(qps[0], &attr, IBV_QP_STATE));
	CHECK(cq->wr_id == 0 && ibv_wc_read_qp_num(cq) == qps[0]->qp_num);
	for (int i = 0; i < 2; i++) {
		CHECK(!ibv_next_poll(cq));
		CHECK(cq->wr_id == 10 + (uint64_t)i && ibv_wc_read_qp_num(cq) == qps[1]->qp_num);
	}
	ibv_end_poll(cq);
	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]));
	CHECK(ibv_start_poll(cq, &none) == ENOENT);
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
}

// failed returns the opcode of the next completion, which failed.
static enum ibv_wc_opcode failed(struct end *e, struct ibv_cq_ex *extended, enum ibv_wc_status status)
{
	struct ibv_poll_cq_attr none = {0};
	enum ibv_wc_opcode opcode;
	struct ibv_wc wc;

	if (!extended) {
		wc = await(e);
		CHECK(wc.status == status);
		return wc.opcode;
	}
	while (ibv_start_poll(extended, &none))
		;
	CHECK(extended->status == status);
	opcode = ibv_wc_read_opcode(extended);
	ibv_end_poll(extended);
	return opcode;
}

static const struct {
	enum ibv_wr_opcode posted;
	enum ibv_wc_opcode completed;
} operations[] = {
	{IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE}, {IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE}, {IBV_WR_SEND, IBV_WC_SEND},
	{IBV_WR_SEND_WITH_IMM, IBV_WC_SEND}, {IBV_WR_SEND_WITH_INV, IBV_WC_SEND}, {IBV_WR_RDMA_READ, IBV_WC_RDMA_READ},
	{IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_COMP_SWAP}, {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD},
	{IBV_WR_LOCAL_INV, IBV_WC_LOCAL_INV}, {IBV_WR_BIND_MW, IBV_WC_BIND_MW}, {IBV_WR_ATOMIC_WRITE, IBV_WC_ATOMIC_WRITE},
};

// fail_all has a request refused by the peer. Those after it are flushed.
static void fail_all(struct ibv_context *context, bool is_extended, bool shared_receives)
{
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, shared_receives);
	struct ibv_cq_ex *at_a = is_extended ? extend(&a) : NULL, *at_b = is_extended ? extend(&b) : NULL;
	struct ibv_mw *mw = ibv_alloc_mw(a.pd, IBV_MW_TYPE_2);
	struct ibv_sge sge = sge_of(&a, 8), small = sge_of(&b, 4);
	struct ibv_recv_wr *bad_receive, receive = {.sg_list = &small, .num_sge = 1};
	size_t count = sizeof operations / sizeof *operations;

	CHECK(mw);
	connect_ends(&a, &b);
	for (size_t i = 0; i < count; i++) {
		struct ibv_send_wr *bad, wr = {
			.sg_list = &sge, .num_sge = 1, .opcode = operations[i].posted, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {.remote_addr = (uintptr_t)b.buffer, .rkey = b.mr->rkey + !i},
		};

		if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr.wr.atomic.remote_addr = (uintptr_t)b.buffer;
			wr.wr.atomic.rkey = b.mr->rkey;
		} else if (wr.opcode == IBV_WR_BIND_MW || wr.opcode == IBV_WR_LOCAL_INV) {
			wr.num_sge = 0;
			wr.bind_mw.mw = mw;
			wr.bind_mw.rkey = mw->rkey;
			wr.bind_mw.bind_info = (struct ibv_mw_bind_info){.mr = a.mr, .addr = (uintptr_t)a.buffer, .length = 8};
			wr.invalidate_rkey = mw->rkey;
		}
		CHECK(!ibv_post_send(a.qp, &wr, &bad));
		CHECK(failed(&a, at_a, i ? IBV_WC_WR_FLUSH_ERR : IBV_WC_REM_ACCESS_ERR) == operations[i].completed);
	}
	post_receive(&a, 1);
	CHECK(failed(&a, at_a, IBV_WC_WR_FLUSH_ERR) == IBV_WC_RECV);
	CHECK(!ibv_dealloc_mw(mw));
	close_end(&a, true);
	close_end(&b, true);

	// A message is longer than its receive.
	a = open_end(context, NULL, false);
	b = open_end(context, NULL, shared_receives);
	at_a = is_extended ? extend(&a) : NULL;
	at_b = is_extended ? extend(&b) : NULL;
	connect_ends(&a, &b);
	small = sge_of(&b, 4);
	CHECK(!(b.srq ? ibv_post_srq_recv(b.srq, &receive, &bad_receive) : ibv_post_recv(b.qp, &receive, &bad_receive)));
	post_send(&a, 2);
	CHECK(failed(&b, at_b, IBV_WC_LOC_LEN_ERR) == IBV_WC_RECV);
	CHECK(failed(&a, at_a, IBV_WC_REM_INV_REQ_ERR) == IBV_WC_SEND);
	close_end(&a, true);
	close_end(&b, true);
}

// Completions with errors have the right opcode: programs look at it.
static void failed_opcodes(void)
{
	struct ibv_context *context = open_first();

	for (int i = 0; i < 4; i++)
		fail_all(context, i & 1, i & 2);
	CHECK(!ibv_close_device(context));
}

// The state in a program's own structure changes only when it asks for it: UCX relies on that.
static void query_state(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	struct ibv_sge sge = sge_of(&a, 8);
	struct ibv_send_wr *bad, wrong = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {.remote_addr = (uintptr_t)b.buffer, .rkey = b.mr->rkey + 1},
	};
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	connect_ends(&a, &b);
	CHECK(!ibv_post_send(a.qp, &wrong, &bad));
	CHECK(await(&a).status == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_query_qp(a.qp, &attr, IBV_QP_AV | IBV_QP_DEST_QPN, &init));
	CHECK(attr.dest_qp_num == b.qp->qp_num && a.qp->state == IBV_QPS_RTS);
	CHECK(!ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init));
	CHECK(attr.qp_state == IBV_QPS_ERR && a.qp->state == IBV_QPS_ERR);
	close_end(&a, true);
	close_end(&b, true);
	CHECK(!ibv_close_device(context));
}

// worker makes and closes connections, in its own context.
static void *worker(void *context)
{
	for (int i = 0; i < 10; i++) {
		struct end a = open_end(context, NULL, false), b = open_end(context, NULL, true);

		connect_ends(&a, &b);
		exchange(&a, &b);
		exchange(&b, &a);
		close_end(&a, true);
		close_end(&b, true);
	}
	return NULL;
}

// Threads use one context at the same time.
static void threads(void)
{
	struct ibv_context *context = open_first();
	pthread_t all[4];

	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&all[i], NULL, worker, context));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(all[i], NULL));
	CHECK(!ibv_close_device(context));
}

static volatile sig_atomic_t signals;

// use_stack uses more stack than a goroutine may have left.
static void use_stack(int number)
{
	volatile char frame[12 << 10];

	for (size_t i = 0; i < sizeof frame; i += 512)
		frame[i] = number;
	signals++;
}

static void interrupt_often(void (*handler)(int))
{
	struct itimerval interval = {{0, 500}, {0, 500}};

	CHECK(signal(SIGALRM, handler) == SIG_DFL);
	CHECK(!setitimer(ITIMER_REAL, &interval, NULL));
}

// Handlers may use stack, wherever they interrupt the verbs, and waits go on after them.
static void signal_handlers(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	struct ibv_cq *cq;
	void *cq_context;

	connect_ends(&a, &b);
	interrupt_often(use_stack);
	while (signals < 200)
		exchange(&a, &b);
	CHECK(!ibv_req_notify_cq(b.cq, 0));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		_exit(0);
	post_receive(&b, 1);
	for (int seen = signals; signals < seen + 20;)
		pause();
	post_send(&a, 2);
	CHECK(!ibv_get_cq_event(b.channel, &cq, &cq_context) && cq == b.cq);
	ibv_ack_cq_events(cq, 1);
	struct itimerval none = {0};
	CHECK(!setitimer(ITIMER_REAL, &none, NULL));
	close_all(context, &a, &b);
}

static void *await_event(void *channel)
{
	struct ibv_cq *cq;
	void *cq_context;

	CHECK(!ibv_get_cq_event(channel, &cq, &cq_context));
	return cq;
}

// A wait for an event outlives handlers with SA_RESTART, and ends when its thread is cancelled.
static void interrupted_waits(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	pthread_t thread;
	void *result;

	connect_ends(&a, &b);
	CHECK(!ibv_req_notify_cq(b.cq, 0));
	CHECK(!pthread_create(&thread, NULL, await_event, b.channel));
	CHECK(signal(SIGUSR1, use_stack) == SIG_DFL);
	for (int i = 0; i < 50; i++) {
		CHECK(!pthread_kill(thread, SIGUSR1));
		usleep(1000);
	}
	exchange(&a, &b);
	CHECK(!pthread_join(thread, &result) && result == b.cq);
	ibv_ack_cq_events(b.cq, 1);
	CHECK(!pthread_create(&thread, NULL, await_event, b.channel));
	usleep(10000);
	CHECK(!pthread_cancel(thread));
	CHECK(!pthread_join(thread, &result) && result == PTHREAD_CANCELED);
	exchange(&a, &b);
	close_all(context, &a, &b);
}

// The handler of the program for faults: what it got, and where to go on.
static sigjmp_buf after_fault;
static volatile struct {
	int number, code, calls;
	void *address;
	bool masked, self_masked; // SIGUSR2, which is in sa_mask, and the signal itself
} fault;

static void on_fault(int number, siginfo_t *info, void *context)
{
	sigset_t mask;

	CHECK(context && !pthread_sigmask(SIG_SETMASK, NULL, &mask));
	fault.number = number;
	fault.code = info->si_code;
	fault.address = info->si_addr;
	fault.masked = sigismember(&mask, SIGUSR2);
	fault.self_masked = sigismember(&mask, number);
	fault.calls++;
	if (info->si_code > 0)
		siglongjmp(after_fault, 1);
}

static struct sigaction set_fault_handler(int number, int flags)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | flags}, before, now;

	CHECK(!sigaddset(&action.sa_mask, SIGUSR2));
	CHECK(!sigaction(number, &action, &before));
	CHECK(!sigaction(number, NULL, &now) && now.sa_sigaction == on_fault);
	CHECK((now.sa_flags & ~0x04000000) == action.sa_flags); // SA_RESTORER is the C library's
	CHECK(sigismember(&now.sa_mask, SIGUSR2) && !sigismember(&now.sa_mask, SIGUSR1));
	return before;
}

static void expect_fault(int number, volatile char *address)
{
	int calls = fault.calls;

	if (!sigsetjmp(after_fault, 1)) {
		*address = 1;
		CHECK(!"a fault");
	}
	CHECK(fault.number == number && fault.code > 0 && fault.address == address && fault.calls == calls + 1);
	CHECK(fault.masked);
}

// lost_memory returns memory that is registered, and then unmapped, or whose file is cut off.
static char *lost_memory(struct ibv_pd *pd, struct ibv_mr **mr, int number)
{
	int fd = memfd_create("region", 0);
	char *memory;

	CHECK(fd >= 0 && !ftruncate(fd, SIZE));
	CHECK((memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED);
	CHECK(*mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE));
	CHECK(!(number == SIGBUS ? ftruncate(fd, 0) : mprotect(memory, SIZE, PROT_NONE)) && !close(fd));
	return memory;
}

// The device guards its access to memory that the program has lost. The program's handler does not
// learn of that, and gets the program's own faults.
static void lose_memory(struct ibv_context *context, int number)
{
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	struct ibv_mr *mr;
	char *memory = lost_memory(a.pd, &mr, number);
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	int calls = fault.calls;

	connect_ends(&a, &b);
	exchange(&a, &b);
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	CHECK(await(&a).status == IBV_WC_LOC_PROT_ERR);
	CHECK(fault.calls == calls);
	expect_fault(number, memory);
	CHECK(!ibv_dereg_mr(mr) && !munmap(memory, SIZE));
	close_end(&a, true);
	close_end(&b, true);
}

static void fault_handlers(void)
{
	struct ibv_context *context = open_first();
	struct sigaction before;

	for (int i = 0; i < 2; i++) {
		int number = i ? SIGBUS : SIGSEGV;

		before = set_fault_handler(number, 0);
		CHECK(before.sa_handler == SIG_DFL);
		lose_memory(context, number);
		CHECK(fault.self_masked);
		CHECK(!raise(number) && fault.number == number && fault.code == SI_TKILL);
		CHECK(!kill(getpid(), number) && fault.code == SI_USER);

		before = set_fault_handler(number, SA_NODEFER | SA_ONSTACK);
		CHECK(before.sa_sigaction == on_fault && before.sa_flags & SA_SIGINFO && !(before.sa_flags & SA_ONSTACK));
		lose_memory(context, number);
		CHECK(!fault.self_masked);

		before = set_fault_handler(number, SA_RESETHAND);
		CHECK(before.sa_flags & SA_ONSTACK);
		CHECK(!raise(number));
		CHECK(!sigaction(number, NULL, &before) && before.sa_handler == SIG_DFL);
		CHECK(signal(number, SIG_IGN) == SIG_DFL && !raise(number) && signal(number, SIG_DFL) == SIG_IGN);
	}
	CHECK(!ibv_close_device(context));
}

// Handlers that are older than the first call of verbs work as well.
static void early_fault_handlers(void)
{
	struct ibv_context *context;

	set_fault_handler(SIGSEGV, 0);
	set_fault_handler(SIGBUS, 0);
	context = open_first();
	for (int i = 0; i < 2; i++) {
		int number = i ? SIGBUS : SIGSEGV;

		lose_memory(context, number);
		CHECK(!raise(number) && fault.number == number && fault.code == SI_TKILL);
		CHECK(set_fault_handler(number, 0).sa_sigaction == on_fault);
	}
	CHECK(!ibv_close_device(context));
}

static _Atomic bool set_enough;
static volatile int pipes;

static void on_pipe(int number) { pipes += number == SIGPIPE; }

static void *set_actions(void *unused)
{
	while (!set_enough) {
		set_fault_handler(SIGSEGV, 0);
		set_fault_handler(SIGBUS, 0);
		CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
	}
	return unused;
}

// Another thread sets actions while the first call of verbs loads the devices.
static void actions_while_loading(void)
{
	struct ibv_context *context;
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, set_actions, NULL));
	context = open_first();
	set_enough = true;
	CHECK(!pthread_join(thread, NULL));
	lose_memory(context, SIGSEGV);
	lose_memory(context, SIGBUS);
	CHECK(signal(SIGPIPE, on_pipe) == SIG_IGN && !raise(SIGPIPE) && pipes == 1);
	CHECK(!ibv_close_device(context));
}

static void *query(void *context)
{
	struct ibv_port_attr attr;

	CHECK(!ibv_query_port(context, 1, &attr));
	return NULL;
}

// A program may give SIGPROF to the kernel itself, as gprof does. A new thread then calls the verbs.
static void own_profiler(void)
{
	static const char default_action[64]; // longer than the kernel's struct
	struct ibv_context *context = open_first();
	pthread_t thread;

	CHECK(!syscall(SYS_rt_sigaction, SIGPROF, default_action, NULL, 8));
	CHECK(!pthread_create(&thread, NULL, query, context) && !pthread_join(thread, NULL));
	CHECK(!ibv_close_device(context));
}

static void write_nowhere(void) { *(volatile char *)NULL = 1; }
static void raise_fault(void) { raise(SIGSEGV); }

static void break_pipe(void)
{
	int ends[2];

	CHECK(!pipe(ends) && !close(ends[0]));
	CHECK(signal(SIGPIPE, SIG_IGN) == SIG_DFL && write(ends[1], "", 1) == -1 && errno == EPIPE);
	CHECK(signal(SIGPIPE, SIG_DFL) == SIG_IGN);
	CHECK(write(ends[1], "", 1) == 1);
}

// Without handlers, signals end the process as they do without the library.
static void default_actions(void)
{
	static const struct {
		void (*run)(void);
		int number;
	} ends[] = {{write_nowhere, SIGSEGV}, {raise_fault, SIGSEGV}, {break_pipe, SIGPIPE}};

	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		pid_t child = fork();
		int status;

		CHECK(child >= 0);
		if (!child) {
			struct rlimit no_core = {0, 0};

			CHECK(!setrlimit(RLIMIT_CORE, &no_core));
			open_first();
			ends[i].run();
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == ends[i].number);
	}
}

// A child of vfork changes its own actions, not those of its parent, whose memory it has. One of fork
// has its parent's.
static void actions_of_children(void)
{
	struct ibv_context *context = open_first();
	struct sigaction now;
	pid_t child;

	set_fault_handler(SIGSEGV, 0);
	child = vfork();
	if (!child) {
		signal(SIGSEGV, SIG_DFL);
		_exit(0);
	}
	CHECK(child > 0);
	wait_for(child);
	CHECK(!sigaction(SIGSEGV, NULL, &now) && now.sa_sigaction == on_fault);
	lose_memory(context, SIGSEGV);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		CHECK(!raise(SIGSEGV) && fault.code == SI_TKILL);
		CHECK(signal(SIGSEGV, SIG_DFL) != SIG_DFL && signal(SIGSEGV, SIG_IGN) == SIG_DFL);
		_exit(0);
	}
	wait_for(child);
	CHECK(!ibv_close_device(context));
}

// expect_limit checks that the verbs fail with an errno, twice, for want of what is limited. The
// caller looks for the message.
static void expect_limit(int resource, rlim_t limit, int error)
{
	struct rlimit before, limits;

	CHECK(!getrlimit(resource, &before));
	limits = (struct rlimit){limit, before.rlim_max};
	CHECK(!setrlimit(resource, &limits));
	errno = 0;
	CHECK(!ibv_get_device_list(NULL) && errno == error);
	errno = 0;
	CHECK(!rdma_create_event_channel() && errno == error);
	CHECK(!setrlimit(resource, &before));
}

static void little_address_space(void) { expect_limit(RLIMIT_AS, 600000 << 10, ENOMEM); }
static void few_files(void) { expect_limit(RLIMIT_NOFILE, 6, EMFILE); }

static void few_threads(void)
{
	CHECK(getuid() || !setuid(65534)); // root has no such limit
	expect_limit(RLIMIT_NPROC, 1, EAGAIN);
}

// The program opens all files that it may have between its first call of verbs and the devices'.
static void no_more_files(void)
{
	struct rlimit none = {5, 5};

	CHECK(!ibv_fork_init() && rdma_create_event_channel() && !setrlimit(RLIMIT_NOFILE, &none));
	CHECK(!ibv_get_device_list(NULL) || errno == EMFILE);
}

static void leave(int number)
{
	(void)number;
	exit(3);
}

// A handler may end the process, wherever it interrupts the verbs.
static void exit_in_handler(void)
{
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (!child) {
		struct ibv_context *context = open_first();
		struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);

		connect_ends(&a, &b);
		CHECK(signal(SIGALRM, leave) == SIG_DFL);
		struct itimerval once = {{0, 0}, {0, 20000}};
		CHECK(!setitimer(ITIMER_REAL, &once, NULL));
		for (;;)
			exchange(&a, &b);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

// stream is a thread that sends messages from a to b until it is told to stop.
struct stream {
	pthread_t thread;
	struct end a, b;
	_Atomic bool *stop;
};

static void *keep_sending(void *given)
{
	struct stream *s = given;

	while (!*s->stop)
		exchange(&s->a, &s->b);
	return NULL;
}

static int children_pipe[2];

static void tell_parent(void)
{
	CHECK(write(children_pipe[1], "x", 1) == 1);
}

static void ignore_signal(int number) { (void)number; }

// be_child does what a child may do, for which it calls no verbs, and ends in one of five ways.
static void be_child(char *page, size_t size, int way)
{
	struct sigaction action = {.sa_handler = ignore_signal};
	char path[] = "/tmp/verbena-test-XXXXXX", text[64];

	memset(page, 'c', size / 4); // before and behind the region
	memset(page + size / 4 * 3, 'c', size / 4);
	CHECK(page[size / 2] == 'p');
	for (int i = 1; i < 1000; i++) {
		char *memory = malloc(i * 100);

		CHECK(memory);
		memset(memory, i, i * 100);
		free(memory);
	}
	int fd = mkstemp(path);

	CHECK(fd >= 0 && write(fd, page, size) == (ssize_t)size && !close(fd) && !unlink(path));
	FILE *state = fopen("/sys/class/infiniband/soft_lo/ports/1/state", "r");

	CHECK(state && fgets(text, sizeof text, state) && !strcmp(text, "4: ACTIVE\n") && !fclose(state));
	CHECK(!sigaction(SIGUSR2, &action, NULL) && !raise(SIGUSR2));
	pid_t grandchild = fork();

	if (!grandchild)
		_exit(0);
	wait_for(grandchild);
	switch (way) {
	case 0:
		exit(70); // with handlers
	case 1:
		_exit(71);
	case 2:
		pthread_exit(NULL); // as the last thread, so with handlers too
	case 3:
		raise(SIGUSR1);
		break;
	default:
		*(volatile int *)8 = 0;
	}
}

// A child that uses no verbs runs for as long as it likes, while the parent uses them in other threads.
static void children_work(void)
{
	struct ibv_context *context = open_first();
	static const int codes[] = {70, 71, 0};
	struct stream streams[2];
	_Atomic bool stop = false;
	size_t size = sysconf(_SC_PAGESIZE);
	char *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), ends[64];

	CHECK(page != MAP_FAILED && !pipe(children_pipe) && !access("/sys/class/infiniband/soft_lo", F_OK));
	memset(page, 'p', size);
	for (int i = 0; i < 2; i++) {
		streams[i] = (struct stream){.a = open_end(context, NULL, false), .b = open_end(context, NULL, false), .stop = &stop};
		connect_ends(&streams[i].a, &streams[i].b);
	}
	struct ibv_mr *mr = ibv_reg_mr(streams[0].a.pd, page + size / 4, size / 2, IBV_ACCESS_LOCAL_WRITE);

	CHECK(mr);
	atexit(tell_parent);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&streams[i].thread, NULL, keep_sending, &streams[i]));
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();
		int status;

		CHECK(child >= 0);
		if (!child)
			be_child(page, size, i % 5);
		CHECK(waitpid(child, &status, 0) == child);
		if (i % 5 < 3)
			CHECK(WIFEXITED(status) && WEXITSTATUS(status) == codes[i % 5]);
		else
			CHECK(WIFSIGNALED(status) && WTERMSIG(status) == (i % 5 == 3 ? SIGUSR1 : SIGSEGV));
	}
	stop = true;
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(streams[i].thread, NULL));
	CHECK(read(children_pipe[0], ends, sizeof ends) == 8 && page[0] == 'p' && page[size - 1] == 'p');
	CHECK(!access("/sys/class/infiniband/soft_lo", F_OK)); // no child has removed it
	CHECK(!ibv_dereg_mr(mr));
	for (int i = 0; i < 2; i++) {
		close_end(&streams[i].a, true);
		close_end(&streams[i].b, true);
	}
	CHECK(!ibv_close_device(context));
}

// A forked child takes no events of its parent.
static void fork_with_events(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	pid_t child;
	struct ibv_cq *cq;
	void *cq_context;

	connect_ends(&a, &b);
	CHECK(!ibv_req_notify_cq(b.cq, 0));
	exchange(&a, &b);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		struct ibv_async_event event;

		CHECK(ibv_get_cq_event(b.channel, &cq, &cq_context) == -1 && errno == EPERM);
		CHECK(ibv_get_async_event(context, &event) == -1 && errno == EPERM);
		_exit(0);
	}
	wait_for(child);
	CHECK(!ibv_get_cq_event(b.channel, &cq, &cq_context) && cq == b.cq);
	ibv_ack_cq_events(cq, 1);
	close_all(context, &a, &b);
}

// A handle that is no longer valid does not name a later object.
static void stale_handle(void)
{
	struct ibv_context *first = open_first();
	struct ibv_cq *old = ibv_create_cq(first, 1, NULL, NULL, 0), *new;
	struct ibv_context *second;
	struct ibv_wc wc;

	CHECK(old && !ibv_close_device(first));
	second = open_first();
	new = ibv_create_cq(second, 1, NULL, NULL, 0);
	CHECK(new && ibv_destroy_cq(old) == EINVAL);
	CHECK(ibv_poll_cq(new, 1, &wc) == 0);
	CHECK(!ibv_destroy_cq(new) && !ibv_close_device(second));
}

// A device closes with a queue pair in a multicast group.
static void leak_in_group(void)
{
	union ibv_gid group = {.raw = {[10] = 0xff, 0xff, 239, 9, 9, 9}};

	for (int i = 0; i < 2; i++) {
		struct ibv_context *context = open_first();
		struct ibv_pd *pd = ibv_alloc_pd(context);
		struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
		struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_UD, .send_cq = cq, .recv_cq = cq, .cap = {.max_recv_wr = 1, .max_recv_sge = 1}};
		struct ibv_qp *qp = ibv_create_qp(pd, &init);

		CHECK(qp && !ibv_attach_mcast(qp, &group, 0));
		CHECK(!ibv_close_device(context));
	}
}

// connect_extended gives an end a queue pair for which programs build requests of these
// operations, all signaled, and connects it.
static struct ibv_qp_ex *connect_extended(struct end *a, struct end *b, uint64_t operations)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC, .send_cq = a->cq, .recv_cq = a->cq, .pd = a->pd, .send_ops_flags = operations,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.cap = {.max_send_wr = DEPTH, .max_send_sge = 1}, // a few inline bytes need no asking
	};
	struct ibv_qp_ex *qp;

	CHECK(!ibv_destroy_qp(a->qp));
	CHECK(a->qp = ibv_create_qp_ex(a->context, &init));
	connect_ends(a, b);
	CHECK(qp = ibv_qp_to_qp_ex(a->qp));
	qp->wr_flags = IBV_SEND_SIGNALED;
	return qp;
}

// Inline data may be empty.
static void inline_nothing(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	struct ibv_qp_ex *qp = connect_extended(&a, &b, IBV_QP_EX_WITH_SEND);
	struct ibv_sge sges[2] = {0};

	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge_list(qp, 2, sges);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	post_receive(&b, 1);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, a.buffer, 0);
	CHECK(!ibv_wr_complete(qp));
	CHECK(await(&a).status == IBV_WC_SUCCESS);
	CHECK(await(&b).status == IBV_WC_SUCCESS);
	close_all(context, &a, &b);
}

// send_many builds a list of sends, with inline data of two parts.
static int send_many(struct ibv_qp_ex *qp, int count)
{
	struct ibv_data_buf parts[2] = {{.addr = "two", .length = 3}, {.addr = "parts", .length = 6}};

	ibv_wr_start(qp);
	for (int i = 0; i < count; i++) {
		qp->wr_id = i;
		ibv_wr_send(qp);
		ibv_wr_set_inline_data_list(qp, 2, parts);
	}
	return ibv_wr_complete(qp);
}

// More requests than the queue has room for are refused together. As many as were asked for are not.
static void too_many_requests(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	struct ibv_qp_ex *qp = connect_extended(&a, &b, IBV_QP_EX_WITH_SEND);
	struct ibv_wc wc;

	for (int i = 0; i < DEPTH; i++)
		post_receive(&b, i);
	CHECK(send_many(qp, SEND_DEPTH + 1) == ENOMEM);
	CHECK(send_many(qp, DEPTH) == 0);
	for (int i = 0; i < DEPTH; i++) {
		wc = await(&a);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i);
		wc = await(&b);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 9);
	}
	CHECK(!memcmp(b.buffer, "twoparts", 9));
	close_all(context, &a, &b);
}

#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static void reconnect(struct end *a, struct end *b)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

	CHECK(!ibv_modify_qp(a->qp, &attr, IBV_QP_STATE) && !ibv_modify_qp(b->qp, &attr, IBV_QP_STATE));
	connect_ends(a, b);
}

// request posts a request for memory of the peer, and returns its status. After an error it connects again.
static enum ibv_wc_status request(struct end *a, struct end *b, enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t address, uint32_t rkey)
{
	struct ibv_send_wr *bad, wr = {
		.opcode = opcode, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {.remote_addr = address, .rkey = rkey},
	};
	enum ibv_wc_status status;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = address;
		wr.wr.atomic.rkey = rkey;
	}
	CHECK(!ibv_post_send(a->qp, &wr, &bad));
	status = await(a).status;
	if (status != IBV_WC_SUCCESS)
		reconnect(a, b);
	return status;
}

static const enum ibv_wr_opcode accesses[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE};

#define ACCESSES (sizeof accesses / sizeof *accesses)

// pages returns pages of memory: a readable and writable one, a read-only one, and one that is not mapped.
static char *pages(size_t page)
{
	char *memory = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED && !mprotect(memory + page, page, PROT_READ) && !munmap(memory + 2 * page, page));
	return memory;
}

// Memory of a region on demand can be inaccessible. The request that names it fails alone, also if the
// region has all memory, and the peer names any address.
static void on_demand(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	size_t page = sysconf(_SC_PAGESIZE);
	char *memory = pages(page);
	struct ibv_mr *all, *based, *some;
	struct ibv_sge sge = sge_of(&a, 8), own;

	connect_ends(&a, &b);
	CHECK(!ibv_reg_mr(b.pd, memory, 3 * page, ALL_ACCESS) && errno == EFAULT);
	CHECK(some = ibv_reg_mr(b.pd, memory, 3 * page, ALL_ACCESS | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB));
	CHECK(all = ibv_reg_mr(b.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND));
	CHECK(all->length == SIZE_MAX);
	CHECK(!ibv_reg_mr(b.pd, (void *)8, 2 * page, ALL_ACCESS | IBV_ACCESS_ON_DEMAND) && errno == EINVAL);
	CHECK(!ibv_reg_mr(b.pd, (void *)((UINT64_C(1) << 48) - page), 2 * page, ALL_ACCESS | IBV_ACCESS_ON_DEMAND) && errno == EINVAL);
	CHECK(ibv_rereg_mr(some, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)8, 2 * page, 0) && errno == EINVAL);
	CHECK(!ibv_reg_mr_iova(b.pd, NULL, SIZE_MAX, 8, ALL_ACCESS | IBV_ACCESS_ON_DEMAND) && errno == EINVAL);
	CHECK(based = ibv_reg_mr(b.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_ZERO_BASED));
	memcpy(a.buffer, "message", 8);
	CHECK(request(&a, &b, IBV_WR_RDMA_WRITE, sge, (uintptr_t)memory, based->rkey) == IBV_WC_SUCCESS && !strcmp(memory, "message"));
	CHECK(!ibv_dereg_mr(based));
	const uint64_t nowhere[] = {0, 8, 4088, (uintptr_t)memory + 2 * page, (UINT64_C(1) << 47) - 8, UINT64_C(1) << 47, UINT64_C(1) << 63, UINT64_MAX - 7};

	for (size_t i = 0; i < ACCESSES; i++) {
		CHECK(request(&a, &b, accesses[i], sge, (uintptr_t)memory, all->rkey) == IBV_WC_SUCCESS);
		CHECK(request(&a, &b, accesses[i], sge, (uintptr_t)memory, some->rkey) == IBV_WC_SUCCESS);
		CHECK(request(&a, &b, accesses[i], sge, (uintptr_t)memory + 2 * page, some->rkey) == IBV_WC_REM_ACCESS_ERR);
		for (size_t n = 0; n < sizeof nowhere / sizeof *nowhere; n++)
			CHECK(request(&a, &b, accesses[i], sge, nowhere[n], all->rkey) == IBV_WC_REM_ACCESS_ERR);
	}
	CHECK(request(&a, &b, IBV_WR_RDMA_READ, sge, (uintptr_t)memory + page, all->rkey) == IBV_WC_SUCCESS);
	CHECK(request(&a, &b, IBV_WR_RDMA_WRITE, sge, (uintptr_t)memory + page, all->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(request(&a, &b, IBV_WR_ATOMIC_WRITE, sge, (uintptr_t)memory + page, all->rkey) == IBV_WC_REM_ACCESS_ERR);

	// Its own requests fail with its own error.
	own = (struct ibv_sge){.addr = (uintptr_t)memory, .length = 8, .lkey = all->lkey};
	CHECK(request(&b, &a, IBV_WR_RDMA_WRITE, own, (uintptr_t)a.buffer, a.mr->rkey) == IBV_WC_SUCCESS);
	own.addr += page;
	CHECK(request(&b, &a, IBV_WR_RDMA_WRITE, own, (uintptr_t)a.buffer, a.mr->rkey) == IBV_WC_SUCCESS);
	CHECK(request(&b, &a, IBV_WR_RDMA_READ, own, (uintptr_t)a.buffer, a.mr->rkey) == IBV_WC_LOC_PROT_ERR);
	own.addr += page;
	CHECK(request(&b, &a, IBV_WR_RDMA_WRITE, own, (uintptr_t)a.buffer, a.mr->rkey) == IBV_WC_LOC_PROT_ERR);
	exchange(&a, &b);

	// A change of the access says whether a region is on demand.
	CHECK(ibv_rereg_mr(some, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS) && errno == EFAULT);
	CHECK(!ibv_rereg_mr(a.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS | IBV_ACCESS_ON_DEMAND));
	CHECK(!ibv_rereg_mr(a.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 3 * page, 0));
	CHECK(request(&b, &a, IBV_WR_RDMA_READ, sge_of(&b, 8), (uintptr_t)memory, a.mr->rkey) == IBV_WC_SUCCESS);
	CHECK(request(&b, &a, IBV_WR_RDMA_READ, sge_of(&b, 8), (uintptr_t)memory + 2 * page, a.mr->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dereg_mr(all) && !ibv_dereg_mr(some) && !munmap(memory, 2 * page));
	close_all(context, &a, &b);
}

// Atomics may name memory that is read-only.
static void on_demand_atomics(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	size_t page = sysconf(_SC_PAGESIZE);
	char *memory = pages(page);
	struct ibv_mr *all = ibv_reg_mr(b.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);

	CHECK(all);
	connect_ends(&a, &b);
	CHECK(request(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, sge_of(&a, 8), (uintptr_t)memory + page, all->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dereg_mr(all) && !munmap(memory, 2 * page));
	close_all(context, &a, &b);
}

// A peer reads all memory of the process, also that of the Go half, whose garbage collector works all
// the time.
static void read_all(void)
{
	CHECK(!setenv("GOGC", "1", 1));
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	struct ibv_mr *all = ibv_reg_mr(b.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	unsigned long from, to;
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[PATH_MAX + 100], readable;
	int read = 0;

	CHECK(all && maps);
	connect_ends(&a, &b);
	while (fgets(line, sizeof line, maps)) {
		CHECK(sscanf(line, "%lx-%lx %c", &from, &to, &readable) == 3);
		for (size_t step = (to - from) / 256 & ~7ul ?: 8; readable == 'r' && from < to && to >> 47 == 0; from += step)
			read += request(&a, &b, IBV_WR_RDMA_READ, sge_of(&a, 8), from, all->rkey) == IBV_WC_SUCCESS;
	}
	CHECK(read > 1000);
	fclose(maps);
	exchange(&a, &b);
	CHECK(!ibv_dereg_mr(all));
	close_all(context, &a, &b);
}

static int prefetch(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, uint32_t lkey, const char *address, uint32_t length)
{
	struct ibv_sge list[2] = {{.addr = (uintptr_t)address, .lkey = lkey}, {.addr = (uintptr_t)address, .length = length, .lkey = lkey}};

	return ibv_advise_mr(pd, advice, flags, list, 2);
}

static void advise(void)
{
	const enum ibv_advise_mr_advice read = IBV_ADVISE_MR_ADVICE_PREFETCH, write = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
		no_fault = IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
	const uint32_t flush = IBV_ADVISE_MR_FLAG_FLUSH;
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false);
	struct ibv_pd *other = ibv_alloc_pd(context);
	size_t page = sysconf(_SC_PAGESIZE);
	char *memory = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(a.pd, memory, 2 * page, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	struct ibv_mr *constant = ibv_reg_mr(a.pd, memory, 2 * page, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND);
	unsigned char present[2];

	CHECK(other && memory != MAP_FAILED && mr && constant);
	CHECK(!prefetch(a.pd, no_fault, flush, mr->lkey, memory, 2 * page) && !mincore(memory, 2 * page, present) && !(present[0] & 1) && !(present[1] & 1));
	CHECK(!prefetch(a.pd, write, flush, mr->lkey, memory + page - 1, 2) && !mincore(memory, 2 * page, present) && present[0] & 1 && present[1] & 1);
	CHECK(!prefetch(a.pd, read, 0, mr->lkey, memory, 2 * page) && !prefetch(a.pd, read, flush, constant->lkey, memory, 2 * page));
	CHECK(prefetch(a.pd, write, 0, constant->lkey, memory, 8) == EPERM && prefetch(other, read, 0, mr->lkey, memory, 8) == EPERM);
	CHECK(prefetch(a.pd, read, 0, mr->lkey, memory, 2 * page + 1) == EFAULT && prefetch(a.pd, read, 0, mr->lkey ^ 1, memory, 8) == EFAULT);
	CHECK(prefetch(a.pd, read, 0, a.mr->lkey, a.buffer, 8) == EINVAL && prefetch(a.pd, read, 2, mr->lkey, memory, 8) == EINVAL);
	CHECK(ibv_advise_mr(a.pd, read, 0, NULL, 1) == EFAULT && !ibv_advise_mr(a.pd, read, 0, NULL, 0));
	CHECK(prefetch(a.pd, no_fault + 1, 0, mr->lkey, memory, 8) == ENOTSUP);
	CHECK(!munmap(memory + page, page));
	CHECK(prefetch(a.pd, read, flush, mr->lkey, memory, 2 * page) == EFAULT && prefetch(a.pd, write, flush, mr->lkey, memory, 2 * page) == EFAULT);
	CHECK(!prefetch(a.pd, write, 0, mr->lkey, memory, 2 * page) && !prefetch(a.pd, no_fault, flush, mr->lkey, memory, 2 * page));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(constant) && !ibv_dealloc_pd(other));
	close_end(&a, true);
	CHECK(!ibv_close_device(context));
}

// Device memory has a limit, its regions keep it, and peers use it by offset.
static void device_memory(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	struct ibv_device_attr_ex attr;
	char word[8];
	struct ibv_dm *dm;
	struct ibv_mr *mr, *none;

	connect_ends(&a, &b);
	CHECK(!ibv_query_device_ex(context, NULL, &attr) && attr.max_dm_size > 0);
	CHECK(!alloc_dm(context, attr.max_dm_size + 1, 0, 0) && errno == EINVAL);
	CHECK(!alloc_dm(context, SIZE_MAX, 0, 0) && errno == EINVAL && !alloc_dm(context, 0, 0, 0) && errno == EINVAL);
	CHECK(!alloc_dm(context, 8, 13, 0) && errno == EINVAL && !alloc_dm(context, 8, 0, 1) && errno == EINVAL);
	CHECK(dm = alloc_dm(context, attr.max_dm_size, 12, 0));
	CHECK(!alloc_dm(context, 4, 0, 0) && errno == ENOMEM);
	CHECK(!ibv_free_dm(dm) && (dm = alloc_dm(context, 4096, 0, 0)));

	CHECK(!ibv_reg_dm_mr(b.pd, dm, 0, 4096, ALL_ACCESS) && errno == EINVAL);
	CHECK(!ibv_reg_dm_mr(b.pd, dm, 64, 4096, ALL_ACCESS | IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
	CHECK(!ibv_reg_dm_mr(b.pd, dm, UINT64_MAX, 8, ALL_ACCESS | IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
	CHECK(mr = ibv_reg_dm_mr(b.pd, dm, 64, 128, ALL_ACCESS | IBV_ACCESS_ZERO_BASED));
	CHECK(none = ibv_reg_dm_mr(b.pd, dm, 4096, 0, ALL_ACCESS | IBV_ACCESS_ZERO_BASED));
	CHECK(ibv_free_dm(dm) == EBUSY);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, b.buffer, 8, 0) && errno == EOPNOTSUPP);
	CHECK(ibv_rereg_mr(none, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS | IBV_ACCESS_ZERO_BASED) && errno == EOPNOTSUPP);

	memcpy(a.buffer, "message", 8);
	CHECK(request(&a, &b, IBV_WR_RDMA_WRITE, sge_of(&a, 8), 120, mr->rkey) == IBV_WC_SUCCESS);
	CHECK(!ibv_memcpy_from_dm(word, dm, 184, 8) && strcmp(word, "message") == 0);
	CHECK(request(&a, &b, IBV_WR_RDMA_WRITE, sge_of(&a, 8), 121, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(request(&a, &b, IBV_WR_RDMA_READ, sge_of(&a, 1), 0, none->rkey) == IBV_WC_REM_ACCESS_ERR);
	*(uint64_t *)word = 41;
	CHECK(!ibv_memcpy_to_dm(dm, 64, word, 8));
	CHECK(request(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, sge_of(&a, 8), 0, mr->rkey) == IBV_WC_SUCCESS && *(uint64_t *)a.buffer == 41);

	CHECK(ibv_memcpy_to_dm(dm, 2, word, 4) == EINVAL && ibv_memcpy_from_dm(word, dm, 0, 3) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 4092, word, 8) == EFAULT && ibv_memcpy_from_dm(word, dm, UINT64_MAX - 3, 8) == EFAULT);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(none) && !ibv_free_dm(dm));
	CHECK(!ibv_alloc_mw(b.pd, 3) && errno == EINVAL);
	close_all(context, &a, &b);
}

// write_word posts an atomic write of 8 bytes by ibv_post_send.
static void write_word(struct end *a, const struct end *b, struct ibv_sge sge, unsigned int flags, uint64_t offset)
{
	struct ibv_send_wr *bad, wr = {
		.wr_id = 5, .opcode = IBV_WR_ATOMIC_WRITE, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED | flags,
		.wr.rdma = {.remote_addr = (uintptr_t)b->buffer + offset, .rkey = b->mr->rkey},
	};

	CHECK(!ibv_post_send(a->qp, &wr, &bad));
}

// Both interfaces write a word, from memory and inline, and a wrong address is refused.
static void atomic_write(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);
	struct ibv_qp_ex *qp = connect_extended(&a, &b, IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_RDMA_WRITE);
	struct ibv_device_attr_ex attr;
	char word[8];
	struct ibv_wc wc;

	CHECK(!ibv_query_device_ex(context, NULL, &attr));
	CHECK(attr.device_cap_flags_ex & 1ull << 40); // IB_UVERBS_DEVICE_ATOMIC_WRITE

	// The 8 bytes belong to the caller again after ibv_wr_atomic_write.
	ibv_wr_start(qp);
	qp->wr_id = 1;
	memcpy(word, "a word. ", 8);
	ibv_wr_atomic_write(qp, b.mr->rkey, (uintptr_t)b.buffer + 8, word);
	memset(word, 0, sizeof word);
	qp->wr_id = 2;
	memcpy(a.buffer, "a second", 8);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.buffer + 16);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.buffer, 8);
	CHECK(!ibv_wr_complete(qp));
	wc = await(&a);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_ATOMIC_WRITE && wc.wr_id == 1);
	wc = await(&a);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE && wc.wr_id == 2);
	CHECK(!memcmp(b.buffer + 8, "a word. a second", 16));

	write_word(&a, &b, sge_of(&a, 8), 0, 24);
	wc = await(&a);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_ATOMIC_WRITE && wc.wr_id == 5);
	memcpy(word, "a third.", 8);
	write_word(&a, &b, (struct ibv_sge){.addr = (uintptr_t)word, .length = 8}, IBV_SEND_INLINE, 32);
	memset(word, 0, sizeof word);
	CHECK(await(&a).status == IBV_WC_SUCCESS);
	CHECK(!memcmp(b.buffer + 24, "a seconda third.", 16));

	write_word(&a, &b, sge_of(&a, 8), 0, 4);
	CHECK(await(&a).status == IBV_WC_REM_INV_REQ_ERR);
	close_all(context, &a, &b);
}

// An atomic write of other than 8 bytes fails.
static void atomic_write_length(void)
{
	struct ibv_context *context = open_first();
	struct end a = open_end(context, NULL, false), b = open_end(context, NULL, false);

	connect_ends(&a, &b);
	write_word(&a, &b, sge_of(&a, 4), 0, 0);
	CHECK(await(&a).status == IBV_WC_LOC_LEN_ERR);
	close_all(context, &a, &b);
}

static int create_qp(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq, struct ibv_qp_cap cap)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .srq = srq, .cap = cap};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	return qp ? ibv_destroy_qp(qp) : errno;
}

static int create_cq(struct ibv_context *context, int cqe, int vector)
{
	struct ibv_cq *cq = ibv_create_cq(context, cqe, NULL, NULL, vector);

	return cq ? ibv_destroy_cq(cq) : errno;
}

static int create_srq(struct ibv_pd *pd, uint32_t wr, uint32_t sge)
{
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = wr, .max_sge = sge}};
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);

	return srq ? ibv_destroy_srq(srq) : errno;
}

static int create_ah(struct ibv_pd *pd, struct ibv_ah_attr attr)
{
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	return ah ? ibv_destroy_ah(ah) : errno;
}

// What the queries report is what is enforced: as much as that works, and no more.
static void limits(void)
{
	struct ibv_context *context = open_first();
	struct end e = open_end(context, NULL, false);
	struct ibv_device_attr d;
	struct ibv_port_attr port;
	struct ibv_qp_attr attr;
	struct ibv_ah_attr self = {.is_global = 1, .port_num = 1}, wrong;
	struct ibv_pd **pds;
	__be16 pkey;
	union ibv_gid gid;
	int most;

	CHECK(!ibv_query_device(context, &d) && !ibv_query_port(context, 1, &port) && !ibv_query_gid(context, 1, 0, &self.grh.dgid));
	// Numbers in one object.
#define ENFORCED(limit, call_with) \
	do { \
		int64_t n = limit; \
		CHECK(!(call_with)); \
		n++; \
		CHECK((call_with) == EINVAL); \
	} while (0)
	ENFORCED(d.max_qp_wr, create_qp(e.pd, e.cq, NULL, (struct ibv_qp_cap){.max_send_wr = n}));
	ENFORCED(d.max_qp_wr, create_qp(e.pd, e.cq, NULL, (struct ibv_qp_cap){.max_recv_wr = n}));
	ENFORCED(d.max_sge, create_qp(e.pd, e.cq, NULL, (struct ibv_qp_cap){.max_send_sge = n}));
	ENFORCED(d.max_sge, create_qp(e.pd, e.cq, NULL, (struct ibv_qp_cap){.max_recv_sge = n}));
	ENFORCED(d.max_cqe, create_cq(context, n, 0));
	ENFORCED(context->num_comp_vectors - 1, create_cq(context, 1, n));
	ENFORCED(d.max_srq_wr, create_srq(e.pd, n, 1));
	ENFORCED(d.max_srq_sge, create_srq(e.pd, 1, n));
	CHECK(!ibv_reg_mr(e.pd, e.buffer, d.max_mr_size + 1, 0) && errno == EINVAL);
	// Ports and indices.
	for (int n = 0; n < 256; n += n < 3 ? 1 : 50) {
		bool exists = n > 0 && n <= d.phys_port_cnt;

		wrong = self;
		wrong.port_num = n;
		CHECK(!create_ah(e.pd, wrong) == exists);
		CHECK(!ibv_query_port(context, n, &port) == exists);
		CHECK(!ibv_query_gid(context, n, 0, &gid) == exists);
		CHECK(!ibv_query_pkey(context, n, 0, &pkey) == exists);
		attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = n};
		CHECK(exists || ibv_modify_qp(e.qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) == EINVAL);
	}
	CHECK(!ibv_query_port(context, 1, &port));
	CHECK(!ibv_query_pkey(context, 1, port.pkey_tbl_len - 1, &pkey) && ibv_query_pkey(context, 1, port.pkey_tbl_len, &pkey) && ibv_query_pkey(context, 1, -1, &pkey));
	CHECK(!ibv_query_gid(context, 1, port.gid_tbl_len - 1, &gid) && ibv_query_gid(context, 1, port.gid_tbl_len, &gid) && ibv_query_gid(context, 1, -1, &gid));
	wrong = self;
	wrong.grh.sgid_index = port.gid_tbl_len;
	CHECK(create_ah(e.pd, wrong) == EINVAL);
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .pkey_index = port.pkey_tbl_len};
	CHECK(ibv_modify_qp(e.qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) == EINVAL);
	initialise(&e);
	for (int i = 0; i < 6; i++) {
		attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = e.qp->qp_num, .max_dest_rd_atomic = d.max_qp_rd_atom, .ah_attr = self};
		switch (i) {
		case 0: attr.ah_attr.port_num = 0; break;
		case 1: attr.ah_attr.port_num = d.phys_port_cnt + 1; break;
		case 2: attr.ah_attr.port_num = 7; break;
		case 3: attr.ah_attr.grh.sgid_index = port.gid_tbl_len; break;
		case 4: attr.max_dest_rd_atomic = d.max_qp_rd_atom + 1; break;
		}
		CHECK(ibv_modify_qp(e.qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == (i < 5 ? EINVAL : 0));
	}
	for (int over = 1; over >= 0; over--) {
		attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .max_rd_atomic = d.max_qp_init_rd_atom + over};
		CHECK(ibv_modify_qp(e.qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == (over ? EINVAL : 0));
	}
	// Numbers of objects. The others are tested where the device can be told to have fewer.
	CHECK(d.max_mcast_grp == 0 || d.max_mcast_qp_attach == 1024);
	CHECK(d.max_total_mcast_qp_attach == d.max_mcast_grp * d.max_mcast_qp_attach);
	CHECK(pds = calloc(d.max_pd, sizeof *pds));
	for (most = 1; most < d.max_pd; most++) // the end has one
		CHECK(pds[most] = ibv_alloc_pd(context));
	CHECK(!ibv_alloc_pd(context) && errno == EINVAL);
	while (--most > 0)
		CHECK(!ibv_dealloc_pd(pds[most]));
	free(pds);
	close_end(&e, true);
	CHECK(!ibv_close_device(context));
}

// No header has these.
extern const char *ibv_get_sysfs_path(void);
extern int ibv_read_sysfs_file(const char *folder, const char *file, char *to, size_t size);

// Files are read without the newline at their end, those of devices among them.
// xrc_srq makes a queue of an XRC domain, with one receive.
static struct ibv_srq *xrc_srq(struct end *e, struct ibv_xrcd *xrcd, uint32_t *number)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = {.max_wr = DEPTH, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = e->pd, .xrcd = xrcd, .cq = e->cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
	};

	CHECK(e->srq = ibv_create_srq_ex(e->context, &attr));
	CHECK(!ibv_get_srq_num(e->srq, number));
	post_receive(e, 7);
	return e->srq;
}

static struct ibv_xrcd *open_xrcd(struct ibv_context *context, int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags};

	return ibv_open_xrcd(context, &attr);
}

// Two contexts share an XRC domain by its file, and a receive queue pair by its number: a message
// names the queue of either.
static void xrc(void)
{
	struct ibv_context *first = open_first(), *second = open_first();
	struct end a = open_end(first, NULL, false), b = open_end(first, NULL, true), c = open_end(second, NULL, false);
	FILE *file = tmpfile();
	int fd = fileno(file);
	struct ibv_xrcd *one, *two, *private;
	struct ibv_srq *basic = b.srq;
	struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp_open_attr open = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE, .qp_type = IBV_QPT_XRC_RECV};
	struct ibv_qp *opened, *old[] = {a.qp, b.qp};
	struct ibv_send_wr *bad, wr = {.wr_id = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .num_sge = 1};
	struct ibv_async_event event;
	struct ibv_qp_ex *ex;
	struct ibv_device_attr device;
	struct ibv_sge sge = sge_of(&a, 8);
	struct ibv_wc wc;
	uint32_t numbers[2], other;

	CHECK(!ibv_query_device(first, &device) && device.device_cap_flags & IBV_DEVICE_XRC);
	CHECK(!open_xrcd(first, fd, 0) && errno == EAGAIN);
	CHECK(one = open_xrcd(first, fd, O_CREAT));
	CHECK(!open_xrcd(second, fd, O_CREAT | O_EXCL) && errno == EINVAL);
	CHECK(two = open_xrcd(second, fd, 0));
	CHECK(private = open_xrcd(first, -1, O_CREAT));
	CHECK(ibv_get_srq_num(basic, &other) == EINVAL);
	xrc_srq(&b, one, &numbers[0]);
	xrc_srq(&c, two, &numbers[1]);
	init.xrcd = one;
	CHECK(b.qp = ibv_create_qp_ex(first, &init));
	init = (struct ibv_qp_init_attr_ex){
		.qp_type = IBV_QPT_XRC_SEND, .send_cq = a.cq, .pd = a.pd, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND, .cap = {.max_send_wr = DEPTH, .max_send_sge = 1},
	};
	CHECK(a.qp = ibv_create_qp_ex(first, &init));
	connect_ends(&a, &b);
	open.xrcd = two;
	open.qp_num = a.qp->qp_num;
	CHECK(!ibv_open_qp(second, &open) && errno == EINVAL);
	open.qp_num = b.qp->qp_num;
	CHECK((opened = ibv_open_qp(second, &open)) && opened->state == IBV_QPS_RTS);
	CHECK(!ibv_destroy_qp(b.qp)); // the other has it open

	wr.sg_list = &sge;
	wr.qp_type.xrc.remote_srqn = numbers[0];
	strcpy(a.buffer, "first");
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	CHECK(await(&a).status == IBV_WC_SUCCESS);
	wc = await(&b);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7 && wc.qp_num == opened->qp_num && !strcmp(b.buffer, "first"));
	strcpy(a.buffer, "second");
	CHECK(ex = ibv_qp_to_qp_ex(a.qp));
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_xrc_srqn(ex, numbers[1]);
	ibv_wr_set_sge(ex, sge.lkey, sge.addr, sge.length);
	CHECK(!ibv_wr_complete(ex));
	CHECK(await(&a).status == IBV_WC_SUCCESS);
	wc = await(&c);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.qp_num == opened->qp_num && !strcmp(c.buffer, "second"));

	CHECK(!ibv_destroy_srq(b.srq));
	xrc_srq(&b, private, &other);
	wr.qp_type.xrc.remote_srqn = other;
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	CHECK(await(&a).status == IBV_WC_REM_INV_REQ_ERR);
	CHECK(!ibv_get_async_event(second, &event) && event.event_type == IBV_EVENT_QP_REQ_ERR && event.element.qp == opened);
	ibv_ack_async_event(&event);

	CHECK(ibv_close_xrcd(two) == EBUSY && !ibv_close_xrcd(one)); // each open has its own queues
	CHECK(!ibv_destroy_srq(c.srq) && ibv_close_xrcd(two) == EBUSY);
	CHECK(!ibv_destroy_qp(opened) && !ibv_close_xrcd(two));
	CHECK(!ibv_destroy_srq(b.srq) && !ibv_close_xrcd(private) && !ibv_destroy_qp(a.qp));
	a.qp = old[0];
	b.qp = old[1];
	b.srq = basic;
	c.srq = NULL;
	close_end(&c, true);
	CHECK(!ibv_close_device(second) && !fclose(file));
	close_all(first, &a, &b);
}

static void sysfs_files(void)
{
	struct ibv_context *context = open_first();
	char content[16], folder[512], file[] = "/tmp/verbena-XXXXXX";
	int fd = mkstemp(file);

	CHECK(strcmp(ibv_get_sysfs_path(), "/sys") == 0);
	CHECK(ibv_read_sysfs_file(context->device->ibdev_path, "ports/1/state", content, sizeof content) == 9);
	CHECK(strcmp(content, "4: ACTIVE") == 0);
	snprintf(folder, sizeof folder, "%s/ports/1", context->device->ibdev_path);
	CHECK(ibv_read_sysfs_file(folder, "state", content, 10) == 9 && content[9] == 0);
	CHECK(ibv_read_sysfs_file(folder, "state", content, 9) == -1);
	CHECK(ibv_read_sysfs_file(folder, "nothing", content, sizeof content) == -1 && errno == ENOENT);
	CHECK(fd >= 0 && write(fd, "word", 4) == 4);
	CHECK(ibv_read_sysfs_file("/tmp", file + 5, content, sizeof content) == 4 && strcmp(content, "word") == 0);
	CHECK(!unlink(file) && !close(fd) && !ibv_close_device(context));
}

// wrong_paths: the functions of the C library that are replaced answer wrong addresses as it does, and
// leave the files of others alone.
static void wrong_paths(void)
{
	static const char *const wrong[] = {NULL, (const char *)8, (const char *)-1};
	struct ibv_context *context = open_first();
	char device[128];
	struct stat st;
	struct stat64 st64;

	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		const char *volatile path = wrong[i];

		CHECK(access(path, R_OK) == -1 && errno == EFAULT);
		CHECK(access(path, 99) == -1 && errno == EINVAL);
		CHECK(open(path, O_RDONLY) == -1 && errno == EFAULT);
		CHECK(open64(path, O_RDONLY) == -1 && errno == EFAULT);
		CHECK(open(path, O_CREAT | O_DIRECTORY, 0600) == -1 && (errno == EFAULT || errno == EINVAL));
		CHECK(openat(AT_FDCWD, path, O_RDONLY) == -1 && errno == EFAULT);
		CHECK(openat64(AT_FDCWD, path, O_RDONLY) == -1 && errno == EFAULT);
#ifndef __SANITIZE_ADDRESS__ // its own fopen looks at the path
		CHECK(!fopen(path, "r") && errno == EFAULT);
		CHECK(!fopen64(path, "r") && errno == EFAULT);
		CHECK(!fopen(path, "?") && errno == EINVAL);
#endif
		CHECK(stat(path, &st) == -1 && errno == EFAULT);
		CHECK(stat64(path, &st64) == -1 && errno == EFAULT);
	}
	snprintf(device, sizeof device, "/dev/infiniband/%s", context->device->dev_name);
	struct stat *volatile nowhere = NULL;

	CHECK(!access(device, R_OK | W_OK) && !stat(device, &st) && S_ISCHR(st.st_mode));
	CHECK(stat(device, nowhere) == -1 && errno == EFAULT);
	CHECK(open("", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(access("", F_OK) == -1 && errno == ENOENT);
	CHECK(open("/sys/class/infiniband/", O_WRONLY) == -1 && errno != EFAULT);

	// errno stays where nothing fails.
	errno = 1;
	int fd = open("/dev/null", O_RDONLY);

	CHECK(fd >= 0 && errno == 1 && !access("/dev/null", R_OK) && errno == 1);
	close(fd);
	CHECK(!ibv_close_device(context));
}

// The capabilities of later headers (efadv_query_device(3), efadv_create_qp_ex(3), efadv_create_cq(3)).
#define EFA_CAPS_RDMA_WRITE (1 << 3)
#define EFA_CAPS_UNSOLICITED_WRITE_RECV (1 << 4)
#define EFA_QP_UNSOLICITED_WRITE_RECV 1
#define EFA_WC_IS_UNSOLICITED 2

#define QKEY 0x1234

// srd_end is a device with an SRD queue pair, and what its requests are about.
struct srd_end {
	struct end end; // without a channel
	struct ibv_qp_ex *build;
	struct ibv_cq_ex *polled;
	struct ibv_ah *peer;
	uint32_t peer_qpn;
};

static struct ibv_qp_init_attr_ex srd_init(struct ibv_pd *pd, struct ibv_cq *cq)
{
	return (struct ibv_qp_init_attr_ex){
		.qp_type = IBV_QPT_DRIVER, .send_cq = cq, .recv_cq = cq, .pd = pd,
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 1},
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	};
}

// srd_ready moves a queue pair to RTS. It repeats requests at most retries times that find no receive.
static void srd_ready(struct ibv_qp *qp, int retries)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .rnr_retry = retries};

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY));
}

static struct srd_end srd_open(struct ibv_device *device, bool unsolicited)
{
	struct srd_end s = {.end.context = ibv_open_device(device)};
	struct ibv_cq_init_attr_ex queue = {.cqe = 4 * DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS};
	struct efadv_cq_init_attr with = {.wc_flags = EFADV_WC_EX_WITH_SGID | EFA_WC_IS_UNSOLICITED};
	struct efadv_qp_init_attr efa = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
	struct end *e = &s.end;
	uint16_t flags = unsolicited ? EFA_QP_UNSOLICITED_WRITE_RECV : 0;

	memcpy((char *)&efa + 12, &flags, sizeof flags);
	CHECK(e->context && (e->pd = ibv_alloc_pd(e->context)));
	CHECK(s.polled = efadv_create_cq(e->context, &queue, &with, sizeof with));
	e->cq = ibv_cq_ex_to_cq(s.polled);
	struct ibv_qp_init_attr_ex init = srd_init(e->pd, e->cq);

	CHECK(e->qp = efadv_create_qp_ex(e->context, &init, &efa, sizeof efa));
	CHECK(s.build = ibv_qp_to_qp_ex(e->qp));
	CHECK(e->buffer = calloc(1, SIZE));
	CHECK(e->mr = ibv_reg_mr(e->pd, e->buffer, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
	srd_ready(e->qp, 0);
	return s;
}

static void srd_close(struct srd_end *s)
{
	CHECK(!s->peer || !ibv_destroy_ah(s->peer));
	CHECK(!ibv_destroy_qp(s->end.qp) && !ibv_destroy_cq(s->end.cq) && !ibv_dereg_mr(s->end.mr) && !ibv_dealloc_pd(s->end.pd));
	CHECK(!ibv_close_device(s->end.context));
	free(s->end.buffer);
}

static struct ibv_ah *srd_address(struct ibv_pd *pd, union ibv_gid gid)
{
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh.dgid = gid};
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	CHECK(ah);
	return ah;
}

// srd_request posts a request with the end's buffer, and returns an errno.
static int srd_request(struct srd_end *s, enum ibv_wr_opcode op, const struct end *to, uint32_t length, unsigned int flags)
{
	struct ibv_qp_ex *b = s->build;

	ibv_wr_start(b);
	b->wr_id = op;
	b->wr_flags = flags;
	switch ((int)op) {
	case IBV_WR_SEND: ibv_wr_send(b); break;
	case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(b, htobe32(7)); break;
	case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(b, to->mr->rkey, (uintptr_t)to->buffer); break;
	case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(b, to->mr->rkey, (uintptr_t)to->buffer, htobe32(8)); break;
	case IBV_WR_RDMA_READ: ibv_wr_rdma_read(b, to->mr->rkey, (uintptr_t)to->buffer); break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_atomic_fetch_add(b, to->mr->rkey, (uintptr_t)to->buffer, 1); break;
	}
	ibv_wr_set_ud_addr(b, s->peer, s->peer_qpn, QKEY);
	if (flags & IBV_SEND_INLINE)
		ibv_wr_set_inline_data(b, s->end.buffer, length);
	else
		ibv_wr_set_sge(b, s->end.mr->lkey, (uintptr_t)s->end.buffer, length);
	return ibv_wr_complete(b);
}

// srd_next waits for a completion, which srd_done ends.
static void srd_next(struct srd_end *s, enum ibv_wc_status status, uint64_t wr_id)
{
	struct ibv_poll_cq_attr attr = {0};
	int error;

	while ((error = ibv_start_poll(s->polled, &attr)) == ENOENT)
		;
	CHECK(!error);
	if (s->polled->status != status)
		fprintf(stderr, "%s, vendor error %u\n", ibv_wc_status_str(s->polled->status), ibv_wc_read_vendor_err(s->polled));
	CHECK(s->polled->status == status && s->polled->wr_id == wr_id);
}

static void srd_completes(struct srd_end *s, enum ibv_wr_opcode op, const struct end *to, uint32_t length, enum ibv_wc_status status)
{
	CHECK(!srd_request(s, op, to, length, IBV_SEND_SIGNALED));
	srd_next(s, status, op);
	CHECK(ibv_wc_read_vendor_err(s->polled) || !status);
	ibv_end_poll(s->polled);
}

// SRD by libefa's functions: every operation, who sent a message, and what fails.
static void srd(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct srd_end a, b;
	struct efadv_device_attr device, first;
	struct efadv_ah_attr known, again;
	struct ibv_recv_wr receive = {.wr_id = 99}, *bad;
	union ibv_gid gid, sender;

	CHECK(list && list[0] && list[1] && list[0]->node_type == IBV_NODE_UNSPECIFIED && list[0]->transport_type == IBV_TRANSPORT_UNSPECIFIED);
	char driver[PATH_MAX], path[PATH_MAX]; // libfabric wants it

	snprintf(path, sizeof path, "%s/device/driver", list[0]->ibdev_path);
	CHECK(realpath(path, driver) && !strcmp(strrchr(driver, '/'), "/efa"));
	a = srd_open(list[0], false);
	b = srd_open(list[1], false);
	CHECK(a.end.qp->qp_num <= UINT16_MAX);
	struct efadv_cq *efa = efadv_cq_from_ibv_cq_ex(b.polled);
	struct ibv_sge room = {.addr = (uintptr_t)b.end.buffer, .length = SIZE, .lkey = b.end.mr->lkey};

	receive.sg_list = &room;
	receive.num_sge = 1;
	CHECK(!efadv_query_device(a.end.context, &device, sizeof device));
	CHECK(device.device_caps == (EFADV_DEVICE_ATTR_CAPS_RDMA_READ | EFADV_DEVICE_ATTR_CAPS_RNR_RETRY | EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID | EFA_CAPS_RDMA_WRITE | EFA_CAPS_UNSOLICITED_WRITE_RECV));
	CHECK(device.max_sq_wr == 4096 && device.max_rq_sge == 2 && device.inline_buf_size == 32 && device.max_rdma_size == 1 << 30);
	memset(&first, 0xff, sizeof first);
	CHECK(!efadv_query_device(a.end.context, &first, offsetof(struct efadv_device_attr, device_caps)) && first.device_caps == UINT32_MAX && first.inline_buf_size == 32);
	CHECK(efadv_query_device(a.end.context, &first, 8) == EINVAL);

	// The receiver learns the sender's GID while it has no address handle, and then that one's number. Its
	// memory is out of reach until then.
	CHECK(!ibv_query_gid(b.end.context, 1, 0, &gid));
	a.peer = srd_address(a.end.pd, gid);
	a.peer_qpn = b.end.qp->qp_num;
	strcpy(a.end.buffer, "message");
	CHECK(!ibv_post_recv(b.end.qp, &receive, &bad));
	CHECK(!srd_request(&a, IBV_WR_SEND, NULL, 8, IBV_SEND_SIGNALED | IBV_SEND_INLINE));
	srd_next(&a, IBV_WC_SUCCESS, IBV_WR_SEND);
	CHECK(ibv_wc_read_opcode(a.polled) == IBV_WC_SEND);
	ibv_end_poll(a.polled);
	srd_next(&b, IBV_WC_SUCCESS, 99);
	CHECK(!ibv_query_gid(a.end.context, 1, 0, &gid) && !efadv_wc_read_sgid(efa, &sender) && !memcmp(&gid, &sender, sizeof gid));
	CHECK(ibv_wc_read_slid(b.polled) == UINT16_MAX && ibv_wc_read_src_qp(b.polled) == a.end.qp->qp_num && ibv_wc_read_byte_len(b.polled) == 8);
	CHECK(ibv_wc_read_opcode(b.polled) == IBV_WC_RECV && !strcmp(b.end.buffer, "message"));
	ibv_end_poll(b.polled);
	srd_completes(&a, IBV_WR_RDMA_WRITE, &b.end, 8, IBV_WC_REM_OP_ERR);
	b.peer = srd_address(b.end.pd, sender);
	struct ibv_ah *other = srd_address(b.end.pd, sender);

	CHECK(!efadv_query_ah(b.peer, &known, sizeof known) && !efadv_query_ah(other, &again, sizeof again) && known.ahn == again.ahn);
	CHECK(!ibv_destroy_ah(other) && efadv_query_ah(b.peer, &known, 8) == EINVAL);
	CHECK(!ibv_post_recv(b.end.qp, &receive, &bad));
	srd_completes(&a, IBV_WR_SEND_WITH_IMM, NULL, 8, IBV_WC_SUCCESS);
	srd_next(&b, IBV_WC_SUCCESS, 99);
	CHECK(ibv_wc_read_slid(b.polled) == known.ahn && efadv_wc_read_sgid(efa, &sender) == -ENOENT);
	CHECK(ibv_wc_read_wc_flags(b.polled) == IBV_WC_WITH_IMM && ibv_wc_read_imm_data(b.polled) == htobe32(7));
	ibv_end_poll(b.polled);

	// Remote memory.
	strcpy(a.end.buffer, "written");
	srd_completes(&a, IBV_WR_RDMA_WRITE, &b.end, 8, IBV_WC_SUCCESS);
	CHECK(!strcmp(b.end.buffer, "written"));
	strcpy(b.end.buffer, "read");
	srd_completes(&a, IBV_WR_RDMA_READ, &b.end, 8, IBV_WC_SUCCESS);
	CHECK(!strcmp(a.end.buffer, "read"));
	CHECK(!ibv_post_recv(b.end.qp, &receive, &bad));
	srd_completes(&a, IBV_WR_RDMA_WRITE_WITH_IMM, &b.end, 8, IBV_WC_SUCCESS);
	srd_next(&b, IBV_WC_SUCCESS, 99);
	CHECK(ibv_wc_read_opcode(b.polled) == IBV_WC_RECV_RDMA_WITH_IMM && ibv_wc_read_imm_data(b.polled) == htobe32(8) && ibv_wc_read_slid(b.polled) == known.ahn);
	ibv_end_poll(b.polled);

	// Errors of a request leave the queue pairs as they are.
	srd_completes(&a, IBV_WR_SEND, NULL, 8, IBV_WC_RNR_RETRY_EXC_ERR);
	struct end wrong = b.end;
	struct ibv_mr no_mr = {.rkey = ~b.end.mr->rkey};

	wrong.mr = &no_mr;
	srd_completes(&a, IBV_WR_RDMA_READ, &wrong, 8, IBV_WC_REM_ACCESS_ERR);
	a.peer_qpn ^= 1;
	srd_completes(&a, IBV_WR_SEND, NULL, 8, IBV_WC_REM_INV_RD_REQ_ERR);
	a.peer_qpn ^= 1;

	// Wrong requests, of which none is posted.
	CHECK(srd_request(&a, IBV_WR_SEND, NULL, 8, 0) == EINVAL);
	CHECK(srd_request(&a, IBV_WR_SEND, NULL, 8, IBV_SEND_SIGNALED | IBV_SEND_FENCE) == EINVAL);
	CHECK(srd_request(&a, IBV_WR_SEND, NULL, 8, IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM) == EINVAL);
	CHECK(srd_request(&a, IBV_WR_SEND, NULL, 33, IBV_SEND_SIGNALED | IBV_SEND_INLINE) == EINVAL);
	CHECK(srd_request(&a, IBV_WR_SEND, NULL, 4 * SIZE, IBV_SEND_SIGNALED) == EINVAL);
	CHECK(srd_request(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, &b.end, 8, IBV_SEND_SIGNALED) == EINVAL);
	struct ibv_send_wr write = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {.rkey = b.end.mr->rkey, .remote_addr = (uintptr_t)b.end.buffer}}, *refused;
	struct ibv_send_wr message = {.wr_id = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .wr.ud = {.ah = a.peer, .remote_qpn = a.peer_qpn, .remote_qkey = QKEY}, .next = &write};

	CHECK(!ibv_post_recv(b.end.qp, &receive, &bad));
	CHECK(ibv_post_send(a.end.qp, &message, &refused) == EINVAL && refused == &write);
	srd_next(&a, IBV_WC_SUCCESS, 3);
	ibv_end_poll(a.polled);
	struct ibv_wc wc = await(&b.end); // the old way tells the sender too

	CHECK(wc.slid == known.ahn && wc.src_qp == a.end.qp->qp_num && wc.byte_len == 0);
	int posted = 0, error;

	while (!(error = srd_request(&a, IBV_WR_SEND, NULL, 8, IBV_SEND_SIGNALED)))
		posted++;
	CHECK(error == ENOMEM && posted == DEPTH);
	while (posted--) {
		srd_next(&a, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WR_SEND);
		ibv_end_poll(a.polled);
	}

	// Wrong queue pairs.
	struct efadv_qp_init_attr srd_type = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
	struct ibv_qp_init_attr_ex init = srd_init(a.end.pd, a.end.cq);
	struct {
		struct efadv_qp_init_attr attr;
		uint64_t later;
	} longer = {.attr = srd_type};
	struct ibv_qp *qp = efadv_create_qp_ex(a.end.context, &init, &longer.attr, sizeof longer);

	CHECK(qp && !ibv_destroy_qp(qp));
	longer.later = 1;
	CHECK(!efadv_create_qp_ex(a.end.context, &init, &longer.attr, sizeof longer) && errno == EINVAL);
	init.send_ops_flags |= IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	CHECK(!efadv_create_qp_ex(a.end.context, &init, &srd_type, sizeof srd_type) && errno == EOPNOTSUPP);
	init.send_ops_flags = 0;
	init.cap.max_send_sge = 3;
	CHECK(!efadv_create_qp_ex(a.end.context, &init, &srd_type, sizeof srd_type) && errno == EINVAL);
	init.cap.max_send_sge = 1;
	CHECK(!ibv_create_qp_ex(a.end.context, &init) && errno == EOPNOTSUPP);
	init.qp_type = IBV_QPT_RC;
	CHECK(!efadv_create_qp_ex(a.end.context, &init, &srd_type, sizeof srd_type) && errno == EINVAL);
	struct ibv_qp_init_attr plain = {.qp_type = IBV_QPT_DRIVER, .send_cq = a.end.cq, .recv_cq = a.end.cq, .cap = {.max_send_wr = 1, .max_send_sge = 1}};

	CHECK(!ibv_create_qp(a.end.pd, &plain) && errno == EOPNOTSUPP);
	CHECK(!efadv_create_driver_qp(a.end.pd, &plain, 1) && errno == EINVAL);
	CHECK((qp = efadv_create_driver_qp(a.end.pd, &plain, EFADV_QP_DRIVER_TYPE_SRD)) && !ibv_qp_to_qp_ex(qp) && !ibv_destroy_qp(qp));
	plain.qp_type = IBV_QPT_RC;
	CHECK(!ibv_create_qp(a.end.pd, &plain) && errno == EOPNOTSUPP);

	// With the flag at both ends, a write with immediate data takes no receive.
	srd_close(&a);
	srd_close(&b);
	a = srd_open(list[0], true);
	b = srd_open(list[1], true);
	struct unsolicited {
		struct efadv_cq old;
		bool (*is)(struct efadv_cq *);
	} *queue = (struct unsolicited *)efadv_cq_from_ibv_cq_ex(b.polled);

	CHECK(!ibv_query_gid(b.end.context, 1, 0, &gid));
	a.peer = srd_address(a.end.pd, gid);
	a.peer_qpn = b.end.qp->qp_num;
	CHECK(!ibv_query_gid(a.end.context, 1, 0, &gid));
	b.peer = srd_address(b.end.pd, gid);
	srd_completes(&a, IBV_WR_RDMA_WRITE_WITH_IMM, &b.end, 8, IBV_WC_SUCCESS);
	srd_next(&b, IBV_WC_SUCCESS, 0);
	CHECK(queue->is(&queue->old) && ibv_wc_read_imm_data(b.polled) == htobe32(8));
	ibv_end_poll(b.polled);
	srd_close(&a);
	srd_close(&b);
	ibv_free_device_list(list);
}

// A device that was not opened as an EFA is none to libefa.
static void not_an_efa(void)
{
	struct ibv_context *context = open_first();
	struct end e = open_end(context, NULL, false);
	struct efadv_device_attr device;
	struct efadv_cq_init_attr with = {0};
	struct ibv_cq_init_attr_ex queue = {.cqe = 1};
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_DRIVER, .send_cq = e.cq, .recv_cq = e.cq};

	CHECK(context->device->node_type == IBV_NODE_CA && context->device->transport_type == IBV_TRANSPORT_IB);
	CHECK(efadv_query_device(context, &device, sizeof device) == EOPNOTSUPP);
	CHECK(!efadv_create_driver_qp(e.pd, &init, EFADV_QP_DRIVER_TYPE_SRD) && errno == EOPNOTSUPP);
	CHECK(!efadv_create_cq(context, &queue, &with, sizeof with) && errno == EOPNOTSUPP);
	close_end(&e, true);
	CHECK(!ibv_close_device(context));
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{"actions_of_children", actions_of_children}, {"actions_while_loading", actions_while_loading}, {"own_profiler", own_profiler},
	{"default_actions", default_actions}, {"early_fault_handlers", early_fault_handlers}, {"fault_handlers", fault_handlers},
	{"few_files", few_files}, {"few_threads", few_threads}, {"little_address_space", little_address_space}, {"no_more_files", no_more_files},
	{"acknowledge", acknowledge}, {"arm_pending", arm_pending}, {"atomic_write", atomic_write}, {"atomic_write_length", atomic_write_length}, {"bad_request", bad_request}, {"busy", busy}, {"children_work", children_work}, {"exchange", simple_exchange},
	{"exit_in_handler", exit_in_handler}, {"failed_opcodes", failed_opcodes}, {"fork_with_events", fork_with_events}, {"inline_nothing", inline_nothing},
	{"interrupted_waits", interrupted_waits}, {"leak_in_group", leak_in_group}, {"signal_handlers", signal_handlers}, {"stale_handle", stale_handle},
	{"fork_after_use", fork_after_use}, {"fork_before_use", fork_before_use}, {"killed", killed}, {"leak", leak}, {"limits", limits}, {"lossy", lossy},
	{"nonblocking", nonblocking}, {"advise", advise}, {"device_memory", device_memory}, {"on_demand", on_demand}, {"on_demand_atomics", on_demand_atomics}, {"query_state", query_state}, {"read_all", read_all}, {"reset_while_reading", reset_while_reading}, {"shared_channel", shared_channel},
	{"sysfs_files", sysfs_files}, {"threads", threads}, {"too_many_requests", too_many_requests},
	{"waiting_threads", waiting_threads}, {"wrong_devices", wrong_devices}, {"wrong_paths", wrong_paths}, {"xrc", xrc},
	{"not_an_efa", not_an_efa}, {"srd", srd},
};

// Without a name, it prints the names.
int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (argc == 1)
			puts(cases[i].name);
		else if (strcmp(cases[i].name, argv[1]) == 0) {
			cases[i].run();
			return 0;
		}
	}
	return argc > 1;
}
