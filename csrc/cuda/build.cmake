# The CUDA module (_cuda), and the same sources over the tests' emulator (_cuda_emulated). Included by CMakeLists.txt.

set(cuda_folder ${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda)
set(cuda_kernels maps matrix_product non_finite prefix_moments queries residual_maps second_moments sum_products)
set(cuda_host
  ${cuda_folder}/check.cpp
  ${cuda_folder}/layer.cpp
  ${cuda_folder}/moments.cpp
  ${cuda_folder}/normal_equations.cpp
  ${cuda_folder}/samples.cpp
  ${cuda_folder}/bindings/arrays.cpp
  ${cuda_folder}/bindings/device.cpp
  ${cuda_folder}/bindings/layer.cpp
  ${cuda_folder}/bindings/module.cpp
  ${cuda_folder}/bindings/moments.cpp
  ${cuda_folder}/bindings/normal_equations.cpp
  ${cuda_folder}/bindings/samples.cpp
  ${cuda_folder}/bindings/sizes.cpp)

# --- for cards ------------------------------------------------------------------------------------------------------

if(NOT LINATTN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "LINATTN_CUDA: must be AUTO, ON or OFF, got '${LINATTN_CUDA}'")
endif()

set(cuda_found OFF)
if(NOT LINATTN_CUDA STREQUAL OFF)
  set(cuda_oldest 0)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100-real 120)
    set(cuda_oldest 12.8)  # to know them all
  endif()
  # Whether nvcc compiles, and whether its toolkit is whole: a partial one must not break an AUTO build.
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit QUIET)
    if(TARGET CUDA::cudart_static AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL cuda_oldest)
      set(cuda_found ON)
    endif()
  endif()
  unset(CMAKE_MESSAGE_LOG_LEVEL)
  if(LINATTN_CUDA STREQUAL ON AND NOT cuda_found)
    message(FATAL_ERROR "LINATTN_CUDA=ON: no working nvcc with the static CUDA runtime was found (12.8 or later, unless "
                        "CMAKE_CUDA_ARCHITECTURES is given); put nvcc on PATH, or name it in the environment variable CUDACXX")
  endif()
endif()

if(cuda_found)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  enable_language(CUDA)
  list(TRANSFORM cuda_kernels PREPEND ${cuda_folder}/ OUTPUT_VARIABLE cuda_sources)
  list(TRANSFORM cuda_sources APPEND .cu)
  add_library(linattn_cuda_kernels OBJECT ${cuda_sources})
  # constexpr: the order of pairs (common/index.hpp) is written once for both. Warnings include spilled registers.
  target_compile_options(linattn_cuda_kernels PRIVATE
    --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra -Xptxas=-warn-spills
    $<$<BOOL:${LINATTN_WERROR}>:-Werror=all-warnings>)

  # After enable_language: pybind11 asks which languages there are.
  pybind11_add_module(_cuda MODULE ${cuda_host})
  string(REPLACE ";" "," cuda_architectures "${CMAKE_CUDA_ARCHITECTURES}")
  target_compile_definitions(_cuda PRIVATE
    LINATTN_CUDA_MODULE=_cuda LINATTN_CUDA_ARCHITECTURES="${cuda_architectures}")
  # As one source: pybind11's headers take longer than everything else.
  set_target_properties(_cuda PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_link_libraries(_cuda PRIVATE linattn_cuda_kernels linattn_options CUDA::cudart_static)
  install(TARGETS _cuda LIBRARY DESTINATION linattn_fast)
endif()

# --- for the emulator -------------------------------------------------------------------------------------------------

if(LINATTN_CUDA_EMULATED)
  set(emulator_folder ${CMAKE_CURRENT_SOURCE_DIR}/tests/cuda/emulator)
  # Without sanitizers: it tells them what fibers do, and must not be watched doing it.
  add_library(linattn_emulator OBJECT
    ${emulator_folder}/execution.cpp ${emulator_folder}/fibers.cpp ${emulator_folder}/runtime.cpp)
  target_compile_options(linattn_emulator PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
    $<$<BOOL:${LINATTN_WERROR}>:-Werror>)
  if(LINATTN_SANITIZE MATCHES address)
    target_compile_definitions(linattn_emulator PRIVATE EMULATOR_ASAN)
  elseif(LINATTN_SANITIZE MATCHES thread)
    target_compile_definitions(linattn_emulator PRIVATE EMULATOR_TSAN)
  endif()

  # g++ takes .cu for a linker script, so each is included by a file of its own.
  set(emulated_sources)
  foreach(kernel ${cuda_kernels})
    set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/emulated/${kernel}.cpp)
    file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${cuda_folder}/${kernel}.cu\"\n")
    list(APPEND emulated_sources ${wrapper})
  endforeach()
  pybind11_add_module(_cuda_emulated MODULE NO_EXTRAS
    ${cuda_host} ${emulated_sources} ${emulator_folder}/bindings.cpp $<TARGET_OBJECTS:linattn_emulator>)
  target_include_directories(_cuda_emulated PRIVATE ${emulator_folder})
  target_compile_definitions(_cuda_emulated PRIVATE
    LINATTN_CUDA_EMULATED LINATTN_CUDA_MODULE=_cuda_emulated LINATTN_CUDA_ARCHITECTURES="emulated")
  # Every rounding as written: the same bits in every order of threads must be the kernels' doing.
  target_compile_options(_cuda_emulated PRIVATE -ffp-contract=off -O1)
  set_source_files_properties(${emulated_sources} ${emulator_folder}/bindings.cpp PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(_cuda_emulated PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_link_libraries(_cuda_emulated PRIVATE linattn_options Threads::Threads)
  install(TARGETS _cuda_emulated LIBRARY DESTINATION linattn_fast)
endif()
