/* Front door of the plugin contract: includes all of it. Each header under abi/ compiles alone. */
#ifndef LUNA_PLUGIN_H
#define LUNA_PLUGIN_H

#include <luna/abi/backend.h>
#include <luna/abi/host.h>
#include <luna/abi/op_program.h>
#include <luna/abi/plugin.h>
#include <luna/abi/quant.h>
#include <luna/abi/role.h>
#include <luna/abi/scheduler.h>
#include <luna/abi/transport.h>
#include <luna/abi/types.h>

#endif
