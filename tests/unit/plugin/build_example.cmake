# Installs the sdk into WORK, builds EXAMPLE against it with COMPILER, and checks that the plugin
# exports one symbol and starts.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --component sdk --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -S ${EXAMPLE} -B ${WORK}/build -G ${GENERATOR}
  -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(nm --dynamic --defined-only ${WORK}/build/scheduler_shortest.so)
string(REGEX MATCHALL "[^ \n]+\n" symbols "${output}")
if(NOT symbols STREQUAL "luna_plugin_query\n")
  message(FATAL_ERROR "exported symbols are not luna_plugin_query alone: ${output}")
endif()
run(${DRIVER} ${WORK}/build 600000 shortest)
message(STATUS "${output}")
