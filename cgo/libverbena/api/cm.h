// The structs and functions that the files of librdmacm's functions share.
#ifndef VERBENA_CM_H
#define VERBENA_CM_H

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "verbena.h"

struct vb_cm_channel {
	struct rdma_event_channel base;
	struct vb_events events;
	_Atomic int readers; // threads in rdma_get_cm_event
};

// vb_join is a membership in a multicast group.
struct vb_join {
	struct vb_join *next;
	uint32_t handle;
	struct vb_cm_id *id;
	void *context;
	bool send_only;
	struct sockaddr_storage group;
	union ibv_gid gid;
	unsigned int taken, acknowledged; // as in vb_cm_id
};

struct vb_cm_id {
	struct rdma_cm_id base;
	uint32_t handle; // 0: it ended with its event channel
	bool synchronous;
	struct vb_device *device; // NULL: none yet
	// The lock of the identifiers guards these.
	struct vb_cm_channel *channel; // NULL: it is destroyed
	struct vb_cm_id *next, **at;
	// Events that were read, which the lock of the channel's queue guards, and those of them
	// that were acknowledged, which the mutex guards.
	unsigned int taken, acknowledged;
	pthread_mutex_t mutex;
	pthread_cond_t cond;

	struct ibv_sa_path_rec path;
	uint8_t responder_resources, initiator_depth; // that the peer's request offers
	struct vb_join *joins;
	// Of rdma_create_ep.
	struct ibv_qp_init_attr *qp_init;
	void *connect_data;
	size_t connect_size;
};

static inline struct vb_cm_id *vb_cm_id(struct rdma_cm_id *id)
{
	return vb_container(id, struct vb_cm_id, base);
}

// vb_result is the result of librdmacm's functions for zero or an errno.
static inline int vb_result(int error)
{
	if (!error)
		return 0;
	errno = error;
	return -1;
}

// vb_cm_new returns an identifier without channel and handle, or NULL.
struct vb_cm_id *vb_cm_new(void *context, enum rdma_port_space space, enum ibv_qp_type type);
// vb_cm_used: the process has made an identifier.
extern _Atomic bool vb_cm_used;

// vb_cm_create makes an identifier. channel is NULL for a synchronous one. It returns an errno.
int vb_cm_create(struct rdma_event_channel *channel, struct vb_cm_id **made, void *context, enum rdma_port_space space, enum ibv_qp_type type);
// vb_cm_attach puts an identifier on a channel.
void vb_cm_attach(struct vb_cm_id *id, struct vb_cm_channel *channel);
// vb_cm_refresh stores what the Go half knows of the ends of an identifier. It returns an errno.
int vb_cm_refresh(struct vb_cm_id *id);
// vb_cm_set_route stores the path.
void vb_cm_set_route(struct vb_cm_id *id);
// vb_cm_complete waits for the event of a call on a synchronous identifier, and returns its
// status as a result. Unless must_come, it does not wait for an event that has not come yet.
// A call looks at synchronous before it begins: another thread may destroy an identifier with a
// channel as soon as it has read the event.
int vb_cm_complete(struct vb_cm_id *id, bool must_come);
// vb_cm_modify_qp moves the queue pair, if there is one. It returns an errno.
int vb_cm_modify_qp(struct vb_cm_id *id, enum ibv_qp_state state, uint8_t responder_resources, uint8_t initiator_depth);
// vb_cm_establish answers a response. It returns an errno.
int vb_cm_establish(struct vb_cm_id *id);
// vb_cm_joined attaches the queue pair to a group. It returns an errno.
int vb_cm_joined(struct vb_join *join, const struct rdma_ud_param *param);
// vb_cm_forget_join removes the events of a membership that has ended, and waits until those that
// were read are acknowledged.
void vb_cm_forget_join(struct vb_join *join);
// vb_cm_size returns the size of an address, or zero if its family is not one of IP.
socklen_t vb_cm_size(const struct sockaddr *address);

#endif
