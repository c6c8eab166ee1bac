#pragma once

namespace sluice {

/// Address of the exported C function `name` in the shared library that holds the address `beside`, else anywhere in the
/// process; nullptr when there is none. For functions of plugins that were loaded without making their names global.
void* exported_symbol(const char* name, const void* beside);

}  // namespace sluice
