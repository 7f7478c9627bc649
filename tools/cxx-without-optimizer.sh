#!/bin/sh
# The C++ compiler of test builds. They need the validator of SPIRV-Tools only; its optimizer, two thirds of the C++ code and minutes of a
# build, is never called, and its files are compiled as empty ones. A use of it would be an error of the linker. The rest is optimised
# little: a quarter less to compile, and validation is no large part of a test.
for argument; do
    case $argument in
        spirv-tools/source/opt/*.cpp)
            while [ "$1" != -o ]; do shift; done
            : > "$2.cpp"
            exec c++ -c "$2.cpp" -o "$2" ;;
    esac
done
exec c++ "$@" -O1
