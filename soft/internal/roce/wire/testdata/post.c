/* post sends one packet or train of each operation through rxe0, to a peer that
 * need not be there: what is captured is what leaves.
 *
 *	cc -o post post.c -libverbs
 *	post GID-INDEX PEER-GID
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SMALL = 13, LARGE = 2500, QKEY = 0x11111111, PEER = 0x123456, PSN = 0xabcdef };

static void try(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static struct ibv_context *device;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_ah_attr peer = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 };

/* Every queue pair posts one request, and is left alone with it. */
static struct ibv_qp *make(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	try(qp != NULL, "create a queue pair");
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
		.ah_attr = peer, .path_mtu = IBV_MTU_1024, .dest_qp_num = PEER,
		.rq_psn = PSN, .sq_psn = PSN, .max_rd_atomic = 1, .max_dest_rd_atomic = 1,
		.timeout = 31, .retry_cnt = 1, .rnr_retry = 1, .min_rnr_timer = 12,
	};
	int path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int init_mask = IBV_QP_PKEY_INDEX | IBV_QP_PORT, rtr = path, rts = IBV_QP_SQ_PSN;
	switch (type) {
	case IBV_QPT_UD:
		init_mask |= IBV_QP_QKEY;
		rtr = 0;
		break;
	case IBV_QPT_RC:
		rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
		/* fallthrough */
	default:
		init_mask |= IBV_QP_ACCESS_FLAGS;
	}
	try(!ibv_modify_qp(qp, &attr, init_mask | IBV_QP_STATE), "go to INIT");
	attr.qp_state = IBV_QPS_RTR;
	try(!ibv_modify_qp(qp, &attr, rtr | IBV_QP_STATE), "go to RTR");
	attr.qp_state = IBV_QPS_RTS;
	try(!ibv_modify_qp(qp, &attr, rts | IBV_QP_STATE), "go to RTS");
	return qp;
}

static void post(enum ibv_qp_type type, enum ibv_wr_opcode opcode, int length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = length, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	/* The same word in wr is the immediate and the key to be invalidated. */
	wr.imm_data = htonl(0x01020304);
	if (opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = 0x01020304;
	if (type == IBV_QPT_UD) {
		wr.wr.ud.ah = ibv_create_ah(pd, &peer);
		try(wr.wr.ud.ah != NULL, "create an address handle");
		wr.wr.ud.remote_qpn = PEER;
		wr.wr.ud.remote_qkey = QKEY;
	} else if (opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
		wr.wr.rdma.remote_addr = 0x1122334455667788;
		wr.wr.rdma.rkey = 0x99aabbcc;
	}
	try(!ibv_post_send(make(type), &wr, &bad), "post");
	usleep(20000);
}

int main(int argc, char **argv)
{
	static char memory[LARGE];
	int devices;
	if (argc != 3)
		return 2;
	peer.grh.sgid_index = atoi(argv[1]);
	try(inet_pton(AF_INET6, argv[2], &peer.grh.dgid) == 1, argv[2]);
	struct ibv_device **list = ibv_get_device_list(&devices);
	try(list && devices, "find a device");
	try((device = ibv_open_device(list[0])) != NULL, "open the device");
	try((pd = ibv_alloc_pd(device)) != NULL, "allocate a protection domain");
	try((cq = ibv_create_cq(device, 64, NULL, NULL, 0)) != NULL, "create a completion queue");
	for (int i = 0; i < LARGE; i++)
		memory[i] = i % 251;
	try((mr = ibv_reg_mr(pd, memory, LARGE, IBV_ACCESS_LOCAL_WRITE)) != NULL, "register memory");

	static const enum ibv_wr_opcode connected[] = {
		IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
	};
	for (int i = 0; i < 4; i++) {
		post(IBV_QPT_UC, connected[i], SMALL);
		post(IBV_QPT_UC, connected[i], LARGE);
	}
	for (int i = 1; i < 4; i += 2) {
		post(IBV_QPT_RC, connected[i], SMALL);
		post(IBV_QPT_RC, connected[i], LARGE);
	}
	post(IBV_QPT_RC, IBV_WR_SEND_WITH_INV, SMALL);
	post(IBV_QPT_RC, IBV_WR_SEND_WITH_INV, LARGE);
	post(IBV_QPT_UD, IBV_WR_SEND_WITH_IMM, SMALL);
	return 0;
}
