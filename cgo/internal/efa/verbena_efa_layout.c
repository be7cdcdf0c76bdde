//go:build linux && cgo && verbs

// Check that the declarations of verbena_efa.h equal those in the system's header, if it has
// them. Structs of newer headers may be longer, but their fields keep their offsets.

#include <stddef.h>

#include "verbena_efa.h"

#if __has_include(<infiniband/efadv.h>)
#include <infiniband/efadv.h>

#define SAME_FIELD(own, theirs, field) \
	_Static_assert(offsetof(struct own, field) == offsetof(struct theirs, field), #theirs "." #field); \
	_Static_assert(sizeof(((struct own *)0)->field) == sizeof(((struct theirs *)0)->field), #theirs "." #field)
#define FITS(own, theirs) _Static_assert(sizeof(struct own) <= sizeof(struct theirs), #theirs)

FITS(vb_efa_device_attr, efadv_device_attr);
SAME_FIELD(vb_efa_device_attr, efadv_device_attr, comp_mask);
SAME_FIELD(vb_efa_device_attr, efadv_device_attr, max_sq_wr);
SAME_FIELD(vb_efa_device_attr, efadv_device_attr, max_rq_wr);
SAME_FIELD(vb_efa_device_attr, efadv_device_attr, max_sq_sge);
SAME_FIELD(vb_efa_device_attr, efadv_device_attr, max_rq_sge);
SAME_FIELD(vb_efa_device_attr, efadv_device_attr, inline_buf_size);
SAME_FIELD(vb_efa_device_attr, efadv_device_attr, device_caps);
SAME_FIELD(vb_efa_device_attr, efadv_device_attr, max_rdma_size);

_Static_assert(sizeof(struct vb_efa_qp_init_attr) == sizeof(struct efadv_qp_init_attr), "efadv_qp_init_attr");
SAME_FIELD(vb_efa_qp_init_attr, efadv_qp_init_attr, comp_mask);
SAME_FIELD(vb_efa_qp_init_attr, efadv_qp_init_attr, driver_qp_type);

_Static_assert(sizeof(struct vb_efa_ah_attr) == sizeof(struct efadv_ah_attr), "efadv_ah_attr");
SAME_FIELD(vb_efa_ah_attr, efadv_ah_attr, comp_mask);
SAME_FIELD(vb_efa_ah_attr, efadv_ah_attr, ahn);

FITS(vb_efa_cq_init_attr, efadv_cq_init_attr);
SAME_FIELD(vb_efa_cq_init_attr, efadv_cq_init_attr, comp_mask);
SAME_FIELD(vb_efa_cq_init_attr, efadv_cq_init_attr, wc_flags);

SAME_FIELD(vb_efa_cq, efadv_cq, comp_mask);
SAME_FIELD(vb_efa_cq, efadv_cq, wc_read_sgid);

#define SAME_VALUE(own, theirs) _Static_assert((int)own == (int)theirs, #theirs)
SAME_VALUE(VB_EFA_QP_SRD, EFADV_QP_DRIVER_TYPE_SRD);
SAME_VALUE(VB_EFA_CAP_RDMA_READ, EFADV_DEVICE_ATTR_CAPS_RDMA_READ);
SAME_VALUE(VB_EFA_CAP_RNR_RETRY, EFADV_DEVICE_ATTR_CAPS_RNR_RETRY);
SAME_VALUE(VB_EFA_CAP_CQ_WITH_SGID, EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID);
SAME_VALUE(VB_EFA_WC_SGID, EFADV_WC_EX_WITH_SGID);
#endif
