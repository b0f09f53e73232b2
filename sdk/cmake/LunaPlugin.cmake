# luna_add_plugin(<name> SOURCES <file>... [LIBS <target>...] [MIN_ABI_MINOR <n>]
#   [CHECK_SETTINGS <key=value>...] [NO_INSTALL])
#
# Builds <name>.so against the sdk alone: hidden visibility, exactly one exported symbol (by version
# script: visibility flags leave instances of the standard library's templates visible), no unique
# symbols, every symbol resolved at link time, its own libraries found beside it ($ORIGIN).
# With the installed sdk each plugin comes with a test, contract_<name>: luna-check holds it against
# every rule, made with CHECK_SETTINGS where its defaults are not enough. MIN_ABI_MINOR: the host's
# minor ABI version that the plugin cannot do without; 0 unless given. Inside Luna's own build the
# plugin is installed with the program; elsewhere:
#   install(TARGETS <name> LIBRARY DESTINATION ${LUNA_PLUGIN_INSTALL_DIR})
set(LUNA_PLUGIN_CMAKE_DIR "${CMAKE_CURRENT_LIST_DIR}")
set(LUNA_PLUGIN_INSTALL_DIR "lib/luna/plugins")  # beside bin/: where the program looks

function(luna_add_plugin name)
  cmake_parse_arguments(arg "NO_INSTALL" "MIN_ABI_MINOR" "SOURCES;LIBS;CHECK_SETTINGS" ${ARGN})
  if(NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "luna_add_plugin(<name> SOURCES <file>... [LIBS <target>...] [MIN_ABI_MINOR <n>]"
      " [CHECK_SETTINGS <key=value>...] [NO_INSTALL])")
  endif()
  add_library(${name} MODULE ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE luna::sdk ${arg_LIBS})
  if(TARGET luna::options)
    target_link_libraries(${name} PRIVATE luna::options)
  endif()
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".so"
    CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
  if(arg_MIN_ABI_MINOR)
    target_compile_definitions(${name} PRIVATE LUNA_ABI_MINOR_NEEDED=${arg_MIN_ABI_MINOR})
  endif()
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>)
  set(map "${LUNA_PLUGIN_CMAKE_DIR}/plugin.map")
  target_link_options(${name} PRIVATE "LINKER:--version-script=${map}" "LINKER:-z,now" "LINKER:-z,noexecstack")
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS "${map}")
  # A sanitizer's runtime belongs to the program, so its symbols stay open in the plugin.
  if(NOT LUNA_SANITIZE AND NOT "${CMAKE_CXX_FLAGS}" MATCHES "-fsanitize")
    target_link_options(${name} PRIVATE "LINKER:--no-undefined")
  endif()
  if(DEFINED LUNA_CHECK)
    list(TRANSFORM arg_CHECK_SETTINGS PREPEND "--set=")
    add_test(NAME contract_${name} COMMAND ${LUNA_CHECK} $<TARGET_FILE:${name}> ${arg_CHECK_SETTINGS})
  endif()
  if(DEFINED LUNA_PLUGIN_OUTPUT_DIRECTORY)
    set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${LUNA_PLUGIN_OUTPUT_DIRECTORY}")
    if(NOT arg_NO_INSTALL)
      install(TARGETS ${name} LIBRARY DESTINATION ${LUNA_PLUGIN_INSTALL_DIR})
    endif()
  endif()
endfunction()
