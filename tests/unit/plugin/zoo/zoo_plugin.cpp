// What differs from plugin to plugin of the zoo: the name of its fault, and what it exports.
#include <luna/plugin.h>

extern "C" {

extern const char luna_zoo_fault[] = LUNA_ZOO_FAULT;

const luna_plugin* luna_zoo_query(uint32_t host_major,
                                  uint32_t host_minor);  // behaviour.cpp, policy.cpp

#ifdef LUNA_ZOO_UNDEFINED_SYMBOL
void luna_zoo_missing_symbol();
#endif

#ifdef LUNA_ZOO_EXTRA_EXPORT
LUNA_EXPORT int luna_zoo_extra_export() {
  return 1;
}
#endif

#ifdef LUNA_ZOO_STATIC_TLS
// Its place in the block that is given out when the program starts is fixed by the linker.
__attribute__((tls_model("initial-exec"), used)) static thread_local int luna_zoo_of_thread = 0;
int* luna_zoo_thread_local() {
  return &luna_zoo_of_thread;
}
#endif

#ifdef LUNA_ZOO_TEXT_RELOCATION
// An address among the instructions, which is known when the library is loaded.
__asm__(".pushsection .text\n.quad luna_zoo_query\n.popsection");
#endif

#ifdef LUNA_ZOO_UNIQUE
}
template <typename T>
struct LunaZooUnique {
  LUNA_EXPORT static int value;
};
template <typename T>
int LunaZooUnique<T>::value = 0;
template struct LunaZooUnique<char>;
extern "C" {
#endif

#ifndef LUNA_ZOO_NO_ENTRY
LUNA_EXPORT const luna_plugin* luna_plugin_query(uint32_t host_major, uint32_t host_minor) {
#ifdef LUNA_ZOO_UNDEFINED_SYMBOL
  luna_zoo_missing_symbol();
#endif
  return luna_zoo_query(host_major, host_minor);
}
#endif

}  // extern "C"
