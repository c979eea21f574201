#pragma once
void appMain(void);
