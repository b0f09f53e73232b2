// What differs from plugin to plugin of the zoo: the name of its fault, and what it exports.
#include <luna/plugin.h>

extern "C" {

extern const char luna_zoo_fault[] = LUNA_ZOO_FAULT;

const luna_plugin* luna_zoo_query();  // behaviour.cpp

#ifdef LUNA_ZOO_UNDEFINED_SYMBOL
void luna_zoo_missing_symbol();
#endif

#ifdef LUNA_ZOO_EXTRA_EXPORT
LUNA_EXPORT int luna_zoo_extra_export() {
  return 1;
}
#endif

#ifndef LUNA_ZOO_NO_ENTRY
LUNA_EXPORT const luna_plugin* luna_plugin_query(uint32_t, uint32_t) {
#ifdef LUNA_ZOO_UNDEFINED_SYMBOL
  luna_zoo_missing_symbol();
#endif
  return luna_zoo_query();
}
#endif

}  // extern "C"
