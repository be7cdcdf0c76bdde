#ifndef VERBENA_EFA_H
#define VERBENA_EFA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>

// The structs and constants of libefa, after the manual pages efadv_query_device(3),
// efadv_create_qp_ex(3), efadv_create_cq(3) and efadv_query_ah(3). A struct that has grown
// is as large here as in the first version with all fields that are used: newer libraries
// accept it, and older ones accept it while the fields that they do not know are zero. The
// numbers are the first versions of rdma-core with the declaration, where that matters: Debian
// 12 has 44.

struct vb_efa_device_attr {
	uint64_t comp_mask;
	uint32_t max_sq_wr, max_rq_wr;
	uint16_t max_sq_sge, max_rq_sge;
	uint16_t inline_buf_size;
	uint8_t reserved[2];
	uint32_t device_caps;
	uint32_t max_rdma_size;
};

enum {
	VB_EFA_CAP_RDMA_READ = 1 << 0,
	VB_EFA_CAP_RNR_RETRY = 1 << 1,
	VB_EFA_CAP_CQ_WITH_SGID = 1 << 2,
	VB_EFA_CAP_RDMA_WRITE = 1 << 3,             // 46
	VB_EFA_CAP_UNSOLICITED_WRITE_RECV = 1 << 4, // 52
};

enum { VB_EFA_QP_SRD = 0 };

struct vb_efa_qp_init_attr {
	uint64_t comp_mask;
	uint32_t driver_qp_type;
	uint16_t flags; // 52; reserved before
	uint8_t sl;     // reserved in 44
	uint8_t reserved;
};

enum { VB_EFA_QP_UNSOLICITED_WRITE_RECV = 1 << 0 }; // 52

struct vb_efa_ah_attr {
	uint64_t comp_mask;
	uint16_t ahn;
	uint8_t reserved[6];
};

struct vb_efa_cq_init_attr { // 43
	uint64_t comp_mask;
	uint64_t wc_flags;
};

enum {
	VB_EFA_WC_SGID = 1 << 0,
	VB_EFA_WC_IS_UNSOLICITED = 1 << 1, // 52
};

struct vb_efa_cq { // 43; created by the library
	uint64_t comp_mask;
	int (*wc_read_sgid)(struct vb_efa_cq *cq, union ibv_gid *sgid);
	bool (*wc_is_unsolicited)(struct vb_efa_cq *cq); // 52, if requested
};

// The functions: name, version of the symbol, version of rdma-core, result and parameters.
#define VB_EFA_FUNCTIONS(F) \
	F(query_device, "EFA_1.1", 26, int, (struct ibv_context *, struct vb_efa_device_attr *, uint32_t)) \
	F(create_qp_ex, "EFA_1.1", 26, struct ibv_qp *, (struct ibv_context *, struct ibv_qp_init_attr_ex *, struct vb_efa_qp_init_attr *, uint32_t)) \
	F(query_ah, "EFA_1.1", 26, int, (struct ibv_ah *, struct vb_efa_ah_attr *, uint32_t)) \
	F(create_cq, "EFA_1.2", 43, struct ibv_cq_ex *, (struct ibv_context *, struct ibv_cq_init_attr_ex *, struct vb_efa_cq_init_attr *, uint32_t)) \
	F(cq_from_ibv_cq_ex, "EFA_1.2", 43, struct vb_efa_cq *, (struct ibv_cq_ex *))

#define VB_EFA_MEMBER(name, version, since, result, parameters) result(*name) parameters;
// vb_efa is a loaded library. Functions that it does not have are NULL.
struct vb_efa {
	VB_EFA_FUNCTIONS(VB_EFA_MEMBER)
};

// vb_efa_load loads a library by the name of its file. It returns NULL, or an error message, in
// the caller's memory.
const char *vb_efa_load(const char *file, struct vb_efa *lib, char *message, size_t size);

// vb_efa_since returns the first version of rdma-core with a function, and sets *has to whether
// the loaded library has it.
int vb_efa_since(const struct vb_efa *lib, const char *function, bool *has);

// The functions below that return an int return zero or an errno; those that return a pointer
// set errno if it is NULL. The caller has checked that the library has the functions they call.

int vb_efa_query_device(const struct vb_efa *lib, struct ibv_context *ctx, struct vb_efa_device_attr *attr);
int vb_efa_query_ah(const struct vb_efa *lib, struct ibv_ah *ah, uint16_t *number);
struct ibv_qp *vb_efa_create_qp(const struct vb_efa *lib, struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr, uint16_t flags);
struct ibv_cq_ex *vb_efa_create_cq(const struct vb_efa *lib, struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr, uint64_t flags);
struct vb_efa_cq *vb_efa_cq_of(const struct vb_efa *lib, struct ibv_cq_ex *cq);

// The readers of a completion. cq is a struct vb_efa_cq.
int vb_efa_read_sgid(void *cq, union ibv_gid *sgid);
int vb_efa_is_unsolicited(void *cq);

#endif
