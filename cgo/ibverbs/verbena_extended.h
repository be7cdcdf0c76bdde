#ifndef VERBENA_EXTENDED_H
#define VERBENA_EXTENDED_H

#include <stdint.h>
#include <infiniband/verbs.h>

// Extended completion queues (ibv_create_cq_ex(3)) and extended posting (ibv_wr_post(3)).

// vb_query_clock queries the mask of the valid bits of completion timestamps, and the clock's
// frequency in kHz. Both are zero if the provider does not support the query.
void vb_query_clock(struct ibv_context *ctx, uint64_t *timestamp_mask, uint64_t *khz);

// On failure the result is NULL, and errno is set.
struct ibv_cq_ex *vb_create_cq_ex(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr);
struct ibv_qp *vb_create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr);

// vb_poller is a completion queue, and the fields to read of its completions.
struct vb_poller {
	struct ibv_cq_ex *cq;
	uint64_t wc_flags;
	int source; // read the sender of received messages
	// singly: do not use ibv_next_poll. In rxe (rdma-core 44) it ends polling by
	// itself when it finds nothing, and ibv_end_poll then drops a completion.
	int singly;
	// The functions of the provider, NULL if it has none, and their first argument.
	void *provider;
	int (*read_sgid)(void *provider, union ibv_gid *gid); // non-zero: there is none
	int (*is_unsolicited)(void *provider);
};

// vb_wc_extra has the fields that struct ibv_wc lacks.
struct vb_wc_extra {
	uint64_t timestamp, wall_clock;
	union ibv_gid source_gid;
	uint16_t source_ah;
	uint8_t unsolicited;
};

// vb_poll_cq_ex takes up to max completions off the queue of a vb_poller; max is at least one.
// It returns their number, or a negative errno. Addresses are passed as numbers for the same
// reason as for vb_poll_cq.
int vb_poll_cq_ex(uintptr_t poller, int max, uintptr_t wc, uintptr_t extra);

// vb_destination is the destination of a request of a queue pair that is not connected.
struct vb_destination {
	struct ibv_ah *ah;
	uint32_t qpn, qkey;
};

// vb_poster is a queue pair, and memory for its requests.
struct vb_poster {
	struct ibv_qp_ex *qp;
	struct vb_destination *destinations; // one for each request; NULL: the queue pair is connected
	uint8_t *gathered;   // room for the data of an inline request
};

// vb_post_send_ex posts the first n of an array of requests. It returns the same as
// vb_post_send.
int64_t vb_post_send_ex(uintptr_t poster, uintptr_t wr, int n);

#endif
