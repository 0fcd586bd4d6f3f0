/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for libhwloc: claims FAKE_API_VERSION, counts topologies, and can make none. */
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

static int topologies;

EXPORT int fake_hwloc_topologies(void) { return __atomic_load_n(&topologies, __ATOMIC_SEQ_CST); }
EXPORT unsigned hwloc_get_api_version(void) { return FAKE_API_VERSION; }

#ifdef FAKE_COMPLETE
EXPORT int hwloc_topology_init(void** topology) {
  (void)topology;
  __atomic_add_fetch(&topologies, 1, __ATOMIC_SEQ_CST);
  return -1;
}
EXPORT void hwloc_topology_destroy(void* topology) { (void)topology; }
EXPORT int hwloc_topology_load(void* topology) { return topology == NULL ? -1 : 0; }
EXPORT int hwloc_topology_set_xmlbuffer(void* topology, const char* xml, int size) {
  return topology == NULL || xml == NULL || size == 0 ? -1 : 0;
}
EXPORT int hwloc_topology_set_flags(void* topology, unsigned long flags) {
  return topology == NULL || flags == 0 ? -1 : 0;
}
EXPORT int hwloc_topology_set_components(void* topology, unsigned long flags, const char* name) {
  return topology == NULL || flags == 0 || name == NULL ? -1 : 0;
}
EXPORT int hwloc_topology_set_io_types_filter(void* topology, int filter) {
  return topology == NULL || filter < 0 ? -1 : 0;
}
EXPORT int hwloc_topology_is_thissystem(void* topology) { return topology != NULL; }
EXPORT int hwloc_get_type_depth(void* topology, int type) { return topology == NULL ? -1 : type; }
EXPORT unsigned hwloc_get_nbobjs_by_depth(void* topology, int depth) {
  return topology == NULL || depth < 0 ? 0 : 1;
}
EXPORT void* hwloc_get_obj_by_depth(void* topology, int depth, unsigned index) {
  return depth < 0 || index > 0 ? NULL : topology;
}
EXPORT int hwloc_bitmap_next(const void* bitmap, int previous) {
  return bitmap == NULL ? -1 : previous + 1;
}
#endif
