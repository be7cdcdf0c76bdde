// What a C program pays for 8-byte RDMA writes over the library in null.c: the floor of the
// table. It prints "case<TAB>nanoseconds per operation" for each case. Its argument is the
// time of a case in milliseconds.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <infiniband/verbs.h>

enum { MAX = 64, SIZE = 8, STEPS = 2000 };

static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *source, *target;
static struct ibv_send_wr requests[MAX];
static struct ibv_sge entries[MAX];

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

// set fills in all fields of n requests that a program sets for a write, as one does that
// writes elsewhere each time.
static void set(int n, int all_signaled)
{
	for (int i = 0; i < n; i++) {
		struct ibv_send_wr *wr = &requests[i];
		entries[i].addr = (uintptr_t)source->addr;
		entries[i].length = SIZE;
		entries[i].lkey = source->lkey;
		wr->wr_id = i;
		wr->next = i + 1 < n ? wr + 1 : NULL;
		wr->sg_list = &entries[i];
		wr->num_sge = 1;
		wr->opcode = IBV_WR_RDMA_WRITE;
		wr->send_flags = IBV_SEND_INLINE | (all_signaled || i == n - 1 ? IBV_SEND_SIGNALED : 0);
		wr->wr.rdma.remote_addr = (uintptr_t)target->addr;
		wr->wr.rdma.rkey = target->rkey;
	}
}

static void step(int n, int all_signaled)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc[MAX];
	if (ibv_post_send(qp, requests, &bad))
		exit(1);
	for (int left = all_signaled ? n : 1; left > 0;) {
		int got = ibv_poll_cq(cq, MAX, wc);
		for (int i = 0; i < got; i++)
			if (wc[i].status)
				exit(1);
		left -= got;
	}
}

static void measure(const char *name, int n, int all_signaled, int set_each, double ms)
{
	set(n, all_signaled);
	for (int i = 0; i < STEPS; i++)
		step(n, all_signaled);
	double begin = now(), took;
	long operations = 0;
	do {
		for (int i = 0; i < STEPS; i++) {
			if (set_each)
				set(n, all_signaled);
			step(n, all_signaled);
		}
		operations += (long)STEPS * n;
		took = now() - begin;
	} while (took < ms * 1e6);
	printf("%s\t%.2f\n", name, took / operations);
}

int main(int argc, char **argv)
{
	double ms = argc > 1 ? atof(argv[1]) : 200;
	struct ibv_context *c = ibv_open_device(*ibv_get_device_list(NULL));
	struct ibv_pd *pd = ibv_alloc_pd(c);
	char *memory = aligned_alloc(4096, 8192);
	memset(memory, 0, 8192);
	source = ibv_reg_mr_iova2(pd, memory, 4096, (uintptr_t)memory, IBV_ACCESS_LOCAL_WRITE);
	target = ibv_reg_mr_iova2(pd, memory + 4096, 4096, (uintptr_t)memory + 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	cq = ibv_create_cq(c, 1024, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {256, 1, 4, 1, 64}};
	qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
	ibv_modify_qp(qp, &attr, IBV_QP_STATE);

	measure("C, requests prepared/1", 1, 1, 0, ms);
	measure("C, requests prepared/64", 64, 1, 0, ms);
	measure("C, requests prepared/64, one completion", 64, 0, 0, ms);
	measure("C, fields set/1", 1, 1, 1, ms);
	measure("C, fields set/64", 64, 1, 1, ms);
	measure("C, fields set/64, one completion", 64, 0, 1, ms);

	struct ibv_wc wc[MAX];
	double begin = now();
	long found = 0;
	enum { POLLS = 5000000 };
	for (int i = 0; i < POLLS; i++)
		found += ibv_poll_cq(cq, MAX, wc);
	printf("C, empty poll\t%.2f\n", (now() - begin) / POLLS);
	return found != 0;
}
