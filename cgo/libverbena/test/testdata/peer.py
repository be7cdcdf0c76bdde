# Connects a queue pair of pyverbs to one whose address comes on standard input. It writes its own
# address first, as GID, queue pair number, address and rkey of its memory. The peer writes to the
# memory and sends a message; the answer is what was written, in capitals, and a message.

import sys

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SIZE = 4096
ALL = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


def wait(cq):
    while True:
        count, completions = cq.poll(1)
        if count:
            if completions[0].status != e.IBV_WC_SUCCESS:
                sys.exit(f"completion with status {completions[0].status}")
            return completions[0]


context = Context(name=sys.argv[1])
pd = PD(context)
cq = CQ(context, 16)
mr = MR(pd, SIZE, ALL)
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_recv_wr=4, max_send_wr=4)))
gid = context.query_gid(port_num=1, index=0)
print(gid.gid, qp.qp_num, mr.buf, mr.rkey, flush=True)
peer_gid, peer_qpn, peer_address, peer_rkey = sys.stdin.readline().split()

attr = QPAttr(port_num=1)
attr.dest_qp_num = int(peer_qpn)
attr.path_mtu = e.IBV_MTU_1024
attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
attr.qp_access_flags = ALL
attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=GID(peer_gid), sgid_index=0))
qp.to_rts(attr)
qp.post_recv(RecvWR(num_sge=1, sg=[SGE(mr.buf, 64, mr.lkey)]))
print("ready", flush=True)
sys.stdin.readline()  # the peer is ready too

if wait(cq).opcode != e.IBV_WC_RECV:
    sys.exit("no message came")
written = mr.read(SIZE // 2, SIZE // 2)
mr.write(written.upper(), SIZE // 2, SIZE // 2)
request = SendWR(num_sge=1, sg=[SGE(mr.buf + SIZE // 2, SIZE // 2, mr.lkey)], opcode=e.IBV_WR_RDMA_WRITE, send_flags=0)
request.set_wr_rdma(int(peer_rkey), int(peer_address))
qp.post_send(request)
qp.post_send(SendWR(num_sge=1, sg=[SGE(mr.buf, 8, mr.lkey)], opcode=e.IBV_WR_SEND))
wait(cq)
print("done", flush=True)
sys.stdin.readline()  # until the peer has what it wants
